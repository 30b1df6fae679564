//! Names the library as programs that are linked with it look for it.

/// Changes with every change of the library that breaks programs; `tools/install_capi.py` makes a link of this name.
const SONAME: &str = "libherringbone.so.0";

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    // Its threads run until the process ends: a program that closes it must not unmap their code.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
