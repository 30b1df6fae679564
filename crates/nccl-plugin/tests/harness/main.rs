//! Drives the built plug-in as NCCL does, with the offsets of NVIDIA's headers and without a GPU.

mod abi;
mod faults;
mod moving;
mod net;
mod processes;
mod tables;
