//! The `lockstep` command. All of it is in the library, which tests can reach.

fn main() -> std::process::ExitCode {
    lockstep_cli::main()
}
