//! The tables and structures are as NVIDIA's headers have them.

use crate::{
    abi::{constant, structure},
    net::{Net, VERSIONS, library, logged},
};
use std::{
    collections::BTreeSet,
    ffi::{CStr, c_int},
    process::{Command, Stdio},
};

fn printed(program: &str, options: &[&str]) -> String {
    let mut command = Command::new(program);
    let done = command.args(options).arg(library()).stderr(Stdio::inherit()).output().unwrap();
    assert!(done.status.success(), "{program} of {}: {}", library().display(), done.status);
    String::from_utf8(done.stdout).unwrap()
}

/// The fields whose functions NCCL does not need, and the plug-in does not have.
const MISSING: [&str; 5] = ["regMrDmaBuf", "getDeviceMr", "irecvConsumed", "makeVDevice", "setNetAttr"];

#[test]
fn tables_have_the_fields_of_the_headers() {
    for version in VERSIONS {
        let net = Net::open(version);
        for field in net.layout.fields.keys() {
            let is_missing = net.pointer(field).is_null();
            assert_eq!(is_missing, MISSING.contains(field), "version {version}: {field}");
        }
        // SAFETY: the headers say that it is a text.
        let name = unsafe { CStr::from_ptr(net.pointer("name").cast()) };
        assert_eq!(name.to_str(), Ok("Herringbone"));
    }
}

/// `nm` prints for each symbol its name, kind, value and size.
#[test]
fn nothing_is_exported_but_tables_of_the_right_sizes() {
    let names = printed("nm", &["-D", "--defined-only", "--format=posix", "-t", "d"]);
    let exported: BTreeSet<(String, usize)> = names
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .map(|words| (words[0].to_owned(), words[3].parse().unwrap()))
        .collect();
    let tables = VERSIONS.map(|version| {
        (format!("ncclNetPlugin_v{version}"), structure(&format!("ncclNet_v{version}_t")).size)
    });
    assert_eq!(exported, tables.into());
}

/// On a machine without a GPU the plug-in loads as well, so nothing of CUDA may be asked for.
#[test]
fn the_plug_in_needs_the_c_library_alone() {
    let dynamic = printed("readelf", &["--dynamic", "--wide"]);
    assert!(dynamic.contains("Library soname: [libnccl-net-herringbone.so]"), "{dynamic}");
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let usual = ["libc.so", "libgcc_s.so", "libm.so", "ld-linux"];
    let others: Vec<&str> = needed.filter(|line| !usual.iter().any(|name| line.contains(name))).collect();
    assert!(others.is_empty(), "{others:?}");
}

/// Memory behind a structure, which nobody may touch.
const GUARD: usize = 64;

#[test]
fn properties_are_where_the_headers_have_them() {
    for version in VERSIONS {
        let net = Net::ready(version);
        let layout = structure(&format!("ncclNetProperties_v{version}_t"));
        assert!(net.devices() > 0);
        for device in 0..net.devices() {
            let mut bytes = vec![0xa5; layout.size + GUARD];
            assert_eq!(net.properties(device, bytes.as_mut_ptr()), 0);
            assert!(bytes[layout.size..].iter().all(|byte| *byte == 0xa5), "it writes behind the structure");
            let int =
                |field: &str| c_int::from_ne_bytes(bytes[layout.offset(field)..][..4].try_into().unwrap());
            let word =
                |field: &str| u64::from_ne_bytes(bytes[layout.offset(field)..][..8].try_into().unwrap());
            // SAFETY: the headers say that it is a text.
            let name = unsafe { CStr::from_ptr(word("name") as *const _) };
            assert!(!name.is_empty());
            assert_eq!(word("guid"), device as u64);
            assert_eq!(i64::from(int("ptrSupport")), constant("NCCL_PTR_HOST"));
            assert_eq!((int("regIsGlobal"), int("port"), int("maxRecvs")), (0, 0, 1));
            assert!(int("speed") > 0 && int("maxComms") > 1_000);
            assert_eq!(i64::from(int("netDeviceType")), constant("NCCL_NET_DEVICE_HOST"));
            assert_eq!(i64::from(int("netDeviceVersion")), constant("NCCL_NET_DEVICE_INVALID_VERSION"));
            let latency = f32::from_bits(int("latency") as u32);
            assert!(latency.abs() < 1e-9, "{latency}");
            if version >= 10 {
                assert_eq!(int("forceFlush"), 0);
                let parts = structure(&format!("ncclNetVDeviceProps_v{version}_t"));
                let at = |field| layout.offset("vProps") + parts.offset(field);
                let int_at = |at: usize| c_int::from_ne_bytes(bytes[at..][..4].try_into().unwrap());
                assert_eq!((int_at(at("ndevs")), int_at(at("devs"))), (1, device));
                let most = constant("NCCL_MAX_NET_SIZE_BYTES") as u64;
                assert!((1 << 30..=most).contains(&word("maxP2pBytes")));
                assert!((1 << 29..=most).contains(&word("maxCollBytes")));
            }
            if version >= 11 {
                assert_eq!(int("maxMultiRequestSize"), 1);
            }
            if version >= 12 {
                let short =
                    |field: &str| i16::from_ne_bytes(bytes[layout.offset(field)..][..2].try_into().unwrap());
                let none = constant("NCCL_NET_ID_UNDEF");
                assert_eq!((i64::from(short("railId")), i64::from(short("planeId"))), (none, none));
            }
        }
    }
}

#[test]
fn a_device_that_is_not_there_is_refused_with_how_many_there_are() {
    for version in VERSIONS {
        let net = Net::ready(version);
        let count = net.devices();
        let mut place = vec![0_u8; 256];
        for device in [-1, count] {
            let code = i64::from(net.properties(device, place.as_mut_ptr()));
            assert_eq!(code, constant("ncclInvalidArgument"));
            assert_eq!(i64::from(net.listen(device, &mut [0; 128]).0), constant("ncclInvalidArgument"));
        }
        let line = format!("asks for device {count} of {count}");
        assert!(logged().iter().any(|logged| logged.contains(&line)), "{:?}", logged());
    }
}

#[test]
fn one_line_says_what_is_used() {
    for version in VERSIONS {
        Net::ready(version);
    }
    let lines: Vec<String> = logged().into_iter().filter(|line| line.contains("over TCP")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("INFO NET/Herringbone : Herringbone "), "{lines:?}");
    assert!(lines[0].contains("[0] ") && lines[0].contains(" stream"), "{lines:?}");
}
