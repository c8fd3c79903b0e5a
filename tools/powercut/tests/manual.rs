//! Commands and options in docs/powercut.md exist.

#[test]
fn every_command_and_option_of_the_manual_exists() {
    let mut program = posthaste_manual::Program::new(env!("CARGO_BIN_EXE_powercut"));
    let mistakes = program.mistakes(include_str!("../../../docs/powercut.md"), "powercut", &["--features"]);
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}
