//! Options after a query, where mu's users put them.

use std::ffi::OsString;

use clap::Command;
use posthaste_search::query::is_field;

/// Moves options of the command in front of the query. `None` if all are in place.
///
/// In a query `-word` excludes a word, and `-from:ann` mail from Ann, even as the first word. So after the query's
/// first word only a single letter, or a form such as `-n5`, is a short option: nobody excludes a single letter.
/// Everything after `--` stays in place.
pub fn options_first(command: &Command, line: &[OsString]) -> Option<Vec<OsString>> {
    let (program, [name, words @ ..]) = line.split_first()? else { return None };
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    // One in the first place stands right, unless it is none.
    words.iter().enumerate().find(|(place, word)| is_option(word) && (*place > 0 || is_negated_field(word)))?;
    let takes_value = |long: &str| {
        let is_it = |arg: &&clap::Arg| {
            arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long))
        };
        command.get_arguments().find(is_it).map(|arg| arg.get_action().takes_values())
    };
    let short_takes_value = |letter: char| {
        let arg = command.get_arguments().find(|arg| arg.get_short() == Some(letter));
        arg.map(|arg| arg.get_action().takes_values())
    };
    let mut options = vec![program.clone(), name.clone()];
    let mut others = Vec::new();
    let mut words = words.iter();
    let mut is_behind = false;
    let mut has_dashes = false;
    let dashes = &OsString::from("--");
    while let Some(word) = words.next() {
        is_behind |= !word.as_encoded_bytes().starts_with(b"-");
        if is_negated_field(word) {
            if !std::mem::replace(&mut has_dashes, true) {
                others.push(dashes);
            }
            others.push(word);
            is_behind = true;
            continue;
        }
        let long = word.to_str().and_then(|word| word.strip_prefix("--"));
        if long == Some("") {
            others.push(word);
            others.extend(words);
            break;
        }
        // Whether it is an option, and its value is the next word.
        let wants_value = match long {
            Some(long) => takes_value(long.split('=').next().unwrap_or("")).map(|takes| takes && !long.contains('=')),
            None => short(word).and_then(|(letter, has_value)| Some(short_takes_value(letter)? && !has_value)),
        };
        // What stands in front may be the value of what stands before it.
        match wants_value.filter(|_| is_behind) {
            None => others.push(word),
            Some(wants_value) => {
                options.push(word.clone());
                if wants_value {
                    options.extend(words.next().cloned());
                }
            }
        }
    }
    options.extend(others.into_iter().cloned());
    Some(options).filter(|options| options != line)
}

/// Moves long options of `tag` or `query save` in front of the command's words. There `-word` removes a tag or is part
/// of a query, so short options stay in place, as does everything after `--`. `None` if all are in place, or it is
/// another command.
pub fn long_options_first(line: &[OsString]) -> Option<Vec<OsString>> {
    let new = || Command::new("posthaste");
    let (place, mut command) = match line.get(1)?.to_str()? {
        "tag" => (2, <crate::tag::Tag as clap::Args>::augment_args(new())),
        "query" if line.get(2)? == "save" => {
            (3, <crate::query::QueryArgs as clap::Args>::augment_args(new()).find_subcommand("save")?.clone())
        }
        _ => return None,
    };
    command.build();
    let mut moved = line[..place].to_vec();
    let mut others = Vec::new();
    let mut words = line[place..].iter();
    while let Some(word) = words.next() {
        let long = word.to_str().and_then(|word| word.strip_prefix("--"));
        let name = long.map(|long| long.split('=').next().unwrap_or(""));
        let option = name.and_then(|name| command.get_arguments().find(|arg| arg.get_long() == Some(name)));
        match option {
            Some(option) => {
                moved.push(word.clone());
                let has_value = long.is_some_and(|long| long.contains('='));
                // One whose value may be left out takes none from here on.
                let is_needed = option.get_num_args().is_some_and(|range| range.min_values() > 0);
                if option.get_action().takes_values() && is_needed && !has_value {
                    moved.extend(words.next().cloned());
                }
            }
            None => others.push(word.clone()),
        }
        if long == Some("") {
            others.extend(words.cloned());
            break;
        }
    }
    moved.extend(others);
    Some(moved).filter(|moved| moved != line)
}

/// True for a negated field such as `-from:ann`, which is not an option `-f`.
fn is_negated_field(word: &OsString) -> bool {
    let word = word.to_str().and_then(|word| word.strip_prefix('-'));
    word.and_then(|word| word.split_once(':')).is_some_and(|(name, _)| is_field(name))
}

/// The letter of `-z` and `-n5`, with true if its value is attached.
fn short(word: &OsString) -> Option<(char, bool)> {
    let mut chars = word.to_str()?.strip_prefix('-')?.chars();
    let letter = chars.next().filter(char::is_ascii_alphabetic)?;
    let value = chars.as_str();
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    (value.is_empty() || is_number && letter == 'n').then_some((letter, is_number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone::Alone;

    #[test]
    fn long_options_go_before_tags_and_queries() {
        let check = |line: &str, expected: Option<&str>| {
            let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(long_options_first(&words(line)), expected.map(words), "{line}");
        };
        check("ph tag +a -b rye --json", Some("ph tag --json +a -b rye"));
        check("ph tag +a --index x rye", Some("ph tag --index x +a rye"));
        check("ph tag +a rye --index=x -h", Some("ph tag --index=x +a rye -h"));
        check("ph tag --json +a rye", None);
        check("ph tag +a -- rye --json", None);
        check("ph tag +a rye --jason", None);
        check("ph tag x --restore --accumulate", Some("ph tag --restore --accumulate x"));
        check("ph query save mine from:ann --index x -not", Some("ph query save --index x mine from:ann -not"));
        check("ph query list --json", None);
        check("ph find rye --json", None);
    }

    #[test]
    fn options_go_before_the_query_and_nothing_else_moves() {
        let check = |line: &str, expected: Option<&str>| {
            let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
            let line = words(line);
            let command = Alone::named(&line[1]).unwrap().command();
            assert_eq!(options_first(&command, &line), expected.map(words), "{line:?}");
        };
        check("ph find rye --maxnum 5 bread --count", Some("ph find --maxnum 5 --count rye bread"));
        check("ph find -n 5 rye --format=json -oven", Some("ph find --format=json -n 5 rye -oven"));
        check("ph threads rye --no-pager", Some("ph threads --no-pager rye"));
        check("ph find rye --help", Some("ph find --help rye"));
        check("ph find --count rye", None);
        check("ph find -f --json rye", None);
        check("ph find -f d --json rye", Some("ph find --json -f d rye"));
        check("ph find subject:x -n 3", Some("ph find -n 3 subject:x"));
        check("ph find rye -n5 -z bread -r", Some("ph find -n5 -z -r rye bread"));
        check("ph find rye -oven -notes -n5x -x", None);
        check("ph view rye -o raw", Some("ph view -o raw rye"));
        check("ph extract rye -a", Some("ph extract -a rye"));
        check("ph find rye -- -z", None);
        check("ph find -header:X-Spam:* rye --count", Some("ph find --count -- -header:X-Spam:* rye"));
        check("ph find -n 3 -from:ann", Some("ph find -n 3 -- -from:ann"));
        check("ph find rye -from:ann -s:x -z", Some("ph find -z rye -- -from:ann -s:x"));
        check("ph find -- -from:ann", None);
        check("ph find rye --cuont", None);
        check("ph find rye -- --count", None);
    }
}
