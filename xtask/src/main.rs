//! House tasks. Everything a developer or a newcomer runs is one of these; `.ci/run` is a list of them.

mod arrows;
mod bench;
mod chaos;
mod database;
mod demo;
mod example;
mod generate;
mod guests;
mod out;
mod session;
mod setup;
mod shell;
mod test;

use clap::{Parser, Subcommand};

/// House tasks of Lockstep.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Installs what is missing: Postgres programs, the Wasm guest toolchain, Node packages, Chromium; builds guests and web page.
    Setup,
    /// Starts everything on this machine, trains the digits example, prints its test loss and accuracy.
    Demo(demo::Demo),
    /// Fetches an example's data, trains it, prints its test loss and what else it measures.
    Example(example::Example),
    /// Runs every test of the project.
    Test(test::Test),
    /// Measures in a release build; with --json the last line is one JSON object.
    Bench(bench::Bench),
    /// Hits jobs with drawn faults; fails if any is named wrongly, loses or repeats a sample, or ends with other weights.
    Chaos(chaos::Chaos),
    /// Fails if a crate or a server module uses what the layout forbids.
    Arrows,
    /// Regenerates what is generated and committed: OpenAPI, TypeScript types, offline queries.
    Generate,
    /// Starts a throw-away Postgres, migrated, prints its URL, and stops it at the end of input.
    Db,
}

fn main() -> anyhow::Result<()> {
    let root = shell::root()?;
    match Arguments::parse().task {
        Task::Setup => setup::run(&root),
        Task::Demo(demo) => demo.run(&root),
        Task::Example(example) => example.run(&root),
        Task::Test(test) => test.run(&root),
        Task::Bench(bench) => bench.run(&root),
        Task::Chaos(chaos) => chaos.run(&root),
        Task::Arrows => arrows::run(&root),
        Task::Generate => generate::run(&root),
        Task::Db => database::run(&root),
    }
}
