//! Lines in which the written configuration differs from what setup would write now.

/// The lines of `theirs` that `ours` has not, with `+`, and the others way round, with `-`, in their order. `theirs` may
/// be of any length; `ours` is short.
pub fn difference(ours: &str, theirs: &str) -> Vec<String> {
    let (ours, theirs): (Vec<&str>, Vec<&str>) = (ours.lines().collect(), theirs.lines().collect());
    // The longest common part of what follows each pair of lines.
    let mut common = vec![vec![0_usize; theirs.len() + 1]; ours.len() + 1];
    for (a, our) in ours.iter().enumerate().rev() {
        for (b, their) in theirs.iter().enumerate().rev() {
            common[a][b] = if our == their { common[a + 1][b + 1] + 1 } else { common[a + 1][b].max(common[a][b + 1]) };
        }
    }
    let (mut a, mut b, mut lines) = (0, 0, Vec::new());
    while a < ours.len() || b < theirs.len() {
        if a < ours.len() && b < theirs.len() && ours[a] == theirs[b] {
            (a, b) = (a + 1, b + 1);
        } else if b == theirs.len() || a < ours.len() && common[a + 1][b] >= common[a][b + 1] {
            lines.push(format!("- {}", ours[a]));
            a += 1;
        } else {
            lines.push(format!("+ {}", theirs[b]));
            b += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_differ_are_named_in_their_order() {
        let of = |ours: &str, theirs: &str| difference(ours, theirs).join("|");
        assert_eq!(of("a\nb\nc\n", "a\nb\nc\n"), "");
        assert_eq!(of("a\nb\nc\n", "a\nx\nc\ny\n"), "- b|+ x|+ y");
        assert_eq!(of("a\nb\n", "b\na\n"), "- a|+ a");
        assert_eq!(of("a\n", ""), "- a");
        assert_eq!(of("", "a\n"), "+ a");
    }
}
