//! The functions of CUDA's driver, found when the program runs: nothing is linked, so a machine without a driver runs the rest.
//!
//! Signatures and numbers come from `cuda.h` of CUDA 13.2 (`CUDA_VERSION` 13020), under the names that its macros expand to.

use crate::device::AcceleratorError;
use libc::{c_char, c_int, c_uint, c_void};
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// The library, as the driver's package installs it.
pub(super) const LIBRARY: &str = "libcuda.so.1";

/// `CUresult`.
pub(super) type DriverStatus = c_int;
/// `CUcontext`, `CUstream` and `CUevent` are pointers to what only the driver knows.
pub(super) type Handle = *mut c_void;
/// `CUdeviceptr`.
pub(super) type Address = u64;

pub(super) const SUCCESS: DriverStatus = 0;
/// `CUDA_ERROR_NOT_READY`
pub(super) const NOT_READY: DriverStatus = 600;
/// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`: another stream is captured, for which the legacy stream would wait.
pub(super) const CAPTURE_IMPLICIT: DriverStatus = 906;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`
pub(super) const RELAXED: c_int = 2;
/// `CU_STREAM_NON_BLOCKING`
pub(super) const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`
pub(super) const DISABLE_TIMING: c_uint = 2;
/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`, and the same of `CU_MEMHOSTALLOC`.
pub(super) const PORTABLE_AND_MAPPED: c_uint = 3;
/// `CU_STREAM_WAIT_VALUE_GEQ`
pub(super) const AT_LEAST: c_uint = 0;
/// `CU_STREAM_WRITE_VALUE_DEFAULT`
pub(super) const WRITE_DEFAULT: c_uint = 0;

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident: $symbol:literal ($($argument:ty),*);)+) => {
        /// Functions of the driver, by what they do.
        #[derive(Debug)]
        pub(super) struct Functions {
            $($(#[$doc])* pub(super) $field: unsafe extern "C" fn($($argument),*) -> DriverStatus,)+
            /// `cuStreamWaitValue32_v2`, of drivers from CUDA 11.7 on.
            pub(super) stream_wait_value: Option<ValueFunction>,
            /// `cuStreamWriteValue32_v2`
            pub(super) stream_write_value: Option<ValueFunction>,
        }

        impl Functions {
            /// Finds all functions in a library.
            ///
            /// # Safety
            /// The library is CUDA's driver, and stays loaded.
            unsafe fn of(library: Handle) -> Result<Self, AcceleratorError> {
                Ok(Self {
                    // SAFETY: the caller's promise, and the types are those of `cuda.h`.
                    $($field: unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn($($argument),*) -> DriverStatus>(symbol(library, $symbol)?) },)+
                    // SAFETY: as above.
                    stream_wait_value: symbol(library, "cuStreamWaitValue32_v2").ok().map(|found| unsafe { std::mem::transmute::<Handle, ValueFunction>(found) }),
                    // SAFETY: as above.
                    stream_write_value: symbol(library, "cuStreamWriteValue32_v2").ok().map(|found| unsafe { std::mem::transmute::<Handle, ValueFunction>(found) }),
                })
            }
        }
    };
}

/// Waits for, or writes, 32 bits: stream, address, value, flags.
pub(super) type ValueFunction = unsafe extern "C" fn(Handle, Address, u32, c_uint) -> DriverStatus;

functions! {
    init: "cuInit" (c_uint);
    error_text: "cuGetErrorString" (DriverStatus, *mut *const c_char);
    device_get: "cuDeviceGet" (*mut c_int, c_int);
    /// The context that the runtime library, and so torch, uses.
    context_retain: "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    context_push: "cuCtxPushCurrent_v2" (Handle);
    context_pop: "cuCtxPopCurrent_v2" (*mut Handle);
    stream_create: "cuStreamCreate" (*mut Handle, c_uint);
    stream_destroy: "cuStreamDestroy_v2" (Handle);
    stream_synchronize: "cuStreamSynchronize" (Handle);
    stream_query: "cuStreamQuery" (Handle);
    stream_wait_event: "cuStreamWaitEvent" (Handle, Handle, c_uint);
    stream_is_capturing: "cuStreamIsCapturing" (Handle, *mut c_int);
    exchange_capture_mode: "cuThreadExchangeStreamCaptureMode" (*mut c_int);
    event_create: "cuEventCreate" (*mut Handle, c_uint);
    event_destroy: "cuEventDestroy_v2" (Handle);
    event_record: "cuEventRecord" (Handle, Handle);
    event_query: "cuEventQuery" (Handle);
    copy_out: "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle);
    copy_in: "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
    host_register: "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    host_unregister: "cuMemHostUnregister" (*mut c_void);
    host_alloc: "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_address: "cuMemHostGetDevicePointer_v2" (*mut Address, *mut c_void, c_uint);
}

/// The driver of this process, which is loaded once and stays.
///
/// # Errors
/// There is none, or it lacks a function.
pub(super) fn functions() -> Result<&'static Functions, AcceleratorError> {
    static LOADED: OnceLock<Result<Functions, AcceleratorError>> = OnceLock::new();
    LOADED.get_or_init(|| load(LIBRARY)).as_ref().map_err(Clone::clone)
}

fn load(library: &str) -> Result<Functions, AcceleratorError> {
    let name = CString::new(library).map_err(|error| AcceleratorError::new("dlopen", error.to_string()))?;
    // SAFETY: the name is a C string. What the library does when it is loaded is the driver's matter, as for torch.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        let problem = format!(
            "{}; this machine has no driver of NVIDIA's, so pass CPU tensors, or install the driver",
            last_error()
        );
        return Err(AcceleratorError::new("dlopen", problem));
    }
    // SAFETY: it is the driver, and nobody unloads it.
    unsafe { Functions::of(library) }
}

fn symbol(library: Handle, name: &str) -> Result<Handle, AcceleratorError> {
    let text = CString::new(name).map_err(|error| AcceleratorError::new("dlsym", error.to_string()))?;
    // SAFETY: the handle is of a loaded library, and the name is a C string.
    let found = unsafe { libc::dlsym(library, text.as_ptr()) };
    if found.is_null() {
        let problem = format!("{}; install a newer driver of NVIDIA's", last_error());
        return Err(AcceleratorError::new("dlsym", problem));
    }
    Ok(found)
}

/// What the loader says of the last failure.
fn last_error() -> String {
    // SAFETY: it has no arguments.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".to_owned();
    }
    // SAFETY: it is a C string until this thread's next call of the loader.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Functions {
    /// The status as a result.
    pub(super) fn check(&self, call: &'static str, status: DriverStatus) -> Result<(), AcceleratorError> {
        if status == SUCCESS {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver writes a pointer to a constant text, or none.
        unsafe { (self.error_text)(status, &raw mut text) };
        let problem = if text.is_null() {
            format!("CUDA's error {status}")
        } else {
            // SAFETY: it is a C string that stays.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            format!("{text} (CUDA's error {status})")
        };
        Err(AcceleratorError::new(call, problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_what_to_do() {
        let error = load("libherringbone-has-no-such-driver.so.1").unwrap_err();
        let said = error.to_string();
        assert!(said.contains("libherringbone-has-no-such-driver.so.1"), "{said}");
        assert!(said.contains("pass CPU tensors, or install the driver"), "{said}");
    }

    #[test]
    fn a_library_without_the_functions_is_no_driver() {
        let error = load("libc.so.6").unwrap_err();
        assert_eq!(error.call, "dlsym");
        assert!(error.problem.contains("cuInit") && error.problem.contains("newer driver"), "{error}");
    }
}
