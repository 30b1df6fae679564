//! Names the plug-in as NCCL looks for it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl-net-herringbone.so");
    // NCCL closes a plug-in that no communicator uses, and may still hold names of its devices.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
