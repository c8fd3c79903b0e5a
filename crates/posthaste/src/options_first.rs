//! Long options behind a query, where mu's users put them.

use std::ffi::OsString;

use clap::Command;

/// Commands whose words are a query.
const COMMANDS: [&str; 5] = ["find", "threads", "addresses", "view", "extract"];

/// The command line with the long options that its command knows before the query. `None` if there are none, or the command takes no query.
///
/// Short ones stay where they are: in a query `-word` is a word that must not be there. So does all behind `--`.
pub fn options_first(cli: impl FnOnce() -> Command, line: &[OsString]) -> Option<Vec<OsString>> {
    let (program, [name, words @ ..]) = line.split_first()? else { return None };
    let is_long = |word: &OsString| word.as_encoded_bytes().starts_with(b"--");
    // One in the first place stands right.
    words.iter().skip(1).find(|word| is_long(word))?;
    let mut cli = cli();
    // Gives it `--help`.
    cli.build();
    let command = cli.find_subcommand(name).filter(|command| COMMANDS.contains(&command.get_name()))?;
    let takes_value = |long: &str| {
        let is_it = |arg: &&clap::Arg| {
            arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long))
        };
        command.get_arguments().find(is_it).map(|arg| arg.get_action().takes_values())
    };
    let (mut options, mut others) = (vec![program.clone(), name.clone()], Vec::new());
    let mut words = words.iter();
    let mut is_behind = false;
    while let Some(word) = words.next() {
        is_behind |= !word.as_encoded_bytes().starts_with(b"-");
        let long = word.to_str().and_then(|word| word.strip_prefix("--"));
        if long == Some("") {
            others.push(word);
            others.extend(words);
            break;
        }
        // What stands in front may be the value of what stands before it.
        match long.filter(|_| is_behind).and_then(|long| takes_value(long.split('=').next()?)) {
            None => others.push(word),
            Some(takes_value) => {
                options.push(word.clone());
                if takes_value && !long.is_some_and(|long| long.contains('=')) {
                    options.extend(words.next().cloned());
                }
            }
        }
    }
    options.extend(others.into_iter().cloned());
    Some(options).filter(|options| options != line)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn long_options_go_before_the_query_and_nothing_else_moves() {
        let check = |line: &str, expected: Option<&str>| {
            let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(options_first(crate::Cli::command, &words(line)), expected.map(words), "{line}");
        };
        check("ph find rye --maxnum 5 bread --count", Some("ph find --maxnum 5 --count rye bread"));
        check("ph find -n 5 rye --format=json -oven", Some("ph find --format=json -n 5 rye -oven"));
        check("ph threads rye --no-pager", Some("ph threads --no-pager rye"));
        check("ph find rye --help", Some("ph find --help rye"));
        check("ph find --count rye", None);
        check("ph find -f --json rye", None);
        check("ph find -f d --json rye", Some("ph find --json -f d rye"));
        check("ph find rye --cuont", None);
        check("ph find rye -- --count", None);
        check("ph tag +x rye --json", None);
        check("ph", None);
    }
}
