//! The `herringbone` command; see the library of this package.

fn main() {
    std::process::exit(herringbone_cli::main_from(std::env::args_os()));
}
