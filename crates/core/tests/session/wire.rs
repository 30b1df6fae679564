use crate::{any_fingerprint, call, crc32c};
use herringbone_core::{
    codec::CodecCode,
    wire::{FINGERPRINT_BYTES, Fingerprint, HEADER_BYTES, Header, Kind, WireError, digest, roll},
};
use proptest::{prelude::*, sample::select};

const KINDS: [Kind; 5] = [Kind::Data, Kind::Grant, Kind::Credit, Kind::Stable, Kind::Control];

pub(crate) fn any_header() -> impl Strategy<Value = Header> {
    let small = (select(&KINDS[..]), any::<(bool, bool, u8, u16, u16)>());
    let large = any::<(u32, u32, u64, u32, u32, u64, u32, u64)>();
    (small, large).prop_map(|((kind, small), large)| {
        let (eager, fingerprint, stream, index, credits) = small;
        let (group, generation, sequence, segment, length, hash, payload_crc, whole) = large;
        Header {
            eager,
            fingerprint,
            stream,
            index,
            credits,
            segment,
            length,
            hash,
            payload_crc,
            whole,
            ..Header::new(kind, group, generation, sequence)
        }
    })
}

/// With the checksum made right again.
fn sealed(mut bytes: [u8; HEADER_BYTES]) -> [u8; HEADER_BYTES] {
    let sum = crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The expected bytes were written by hand from the layout in the module's documentation.
#[test]
fn a_header_has_these_bytes() {
    let header = Header {
        eager: true,
        fingerprint: true,
        stream: 7,
        segment: 0x1c1b_1a19,
        index: 0x1e1d,
        credits: 0x201f,
        length: 0x2423_2221,
        hash: 0x302f_2e2d_2c2b_2a29,
        payload_crc: 0x3433_3231,
        whole: 0x3c3b_3a39_3837_3635,
        ..Header::new(Kind::Control, 0x0c0b_0a09, 0x100f_0e0d, 0x1817_1615_1413_1211)
    };
    let expected = "4872620105030007090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20\
                    2122232400000000292a2b2c2d2e2f303132333435363738393a3b3c";
    let bytes = header.encode(crc32c);
    assert_eq!(hex(&bytes[..60]), expected);
    assert_eq!(hex(&bytes[60..]), HEADER_CRC);
}

const HEADER_CRC: &str = "f1881e79";

#[test]
fn a_fingerprint_has_these_bytes() {
    let fingerprint = Fingerprint {
        sequence: 0x0807_0605_0403_0201,
        collective: 9,
        dtype: 10,
        op: 11,
        order: 12,
        root: 0x100f_0e0d,
        count: 0x1817_1615_1413_1211,
        plan: 0x201f_1e1d_1c1b_1a19,
        priority: 0x2423_2221,
        mark: 0x2827_2625,
        codec: CodecCode { number: 0x2c2b_2a29, parameter: 0x302f_2e2d },
    };
    let bytes = fingerprint.encode(crc32c);
    assert_eq!(hex(&bytes[..48]), (1..=48).map(|byte| format!("{byte:02x}")).collect::<String>());
    assert_eq!(hex(&bytes[48..]), FINGERPRINT_CRC);
}

const FINGERPRINT_CRC: &str = "e2d58399";

/// Every release has to compute the same numbers. These were computed by another program.
#[test]
fn the_hashes_have_these_values() {
    assert_eq!(roll(0, &call()), ROLLED);
    assert_eq!(digest(b"ring"), DIGESTED);
    assert_ne!(digest(b""), digest(&[0]));
    assert_ne!(digest(b"radix(8,8)"), digest(b"radix(8,4)"));
}

const ROLLED: u64 = 0xfb65_1dab_ff10_f1fd;
const DIGESTED: u64 = 0x078d_6266_53e8_053f;

#[test]
fn every_flipped_bit_is_found() {
    let header = Header { length: 4096, ..Header::new(Kind::Data, 1, 2, 3) };
    for bit in 0..HEADER_BYTES * 8 {
        let mut bytes = header.encode(crc32c);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let error = Header::decode(&bytes, crc32c).unwrap_err();
        assert!(matches!(error, WireError::HeaderChecksum { .. }), "bit {bit}: {error}");
    }
    for bit in 0..FINGERPRINT_BYTES * 8 {
        let mut bytes = call().encode(crc32c);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let error = Fingerprint::decode(&bytes, crc32c).unwrap_err();
        assert!(matches!(error, WireError::FingerprintChecksum { .. }), "bit {bit}: {error}");
    }
}

#[test]
fn what_this_version_does_not_know_is_refused() {
    let good = Header::new(Kind::Data, 1, 2, 3).encode(crc32c);
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        Header::decode(&sealed(bytes), crc32c)
    };
    assert_eq!(with(0, b'h'), Err(WireError::Magic { found: *b"hrb" }));
    assert_eq!(with(3, 2), Err(WireError::Version { found: 2 }));
    assert_eq!(with(4, 0), Err(WireError::Kind { found: 0 }));
    assert_eq!(with(4, 8), Err(WireError::Kind { found: 8 }));
    assert_eq!(with(5, 8), Err(WireError::Features { flags: 8 }));
    assert_eq!(with(5, 4), Err(WireError::Features { flags: 4 }));
    assert_eq!(with(6, 1), Err(WireError::Features { flags: 0 }));
    assert_eq!(with(36, 1), Err(WireError::Features { flags: 0 }), "kept for later");
}

#[test]
fn fingerprints_read_like_calls() {
    let said = |change: fn(&mut Fingerprint)| {
        let mut fingerprint = Fingerprint { sequence: 17, ..call() };
        change(&mut fingerprint);
        fingerprint.to_string()
    };
    assert_eq!(said(|_| ()), "all_reduce of 1000 f32, sum (operation 17)");
    assert_eq!(said(|f| (f.collective, f.root) = (2, 5)), "reduce of 1000 f32, sum to rank 5 (operation 17)");
    assert_eq!(
        said(|f| (f.collective, f.root, f.dtype) = (3, 2, 5)),
        "broadcast of 1000 u8 from rank 2 (operation 17)"
    );
    assert_eq!(said(|f| f.collective = 6), "barrier (operation 17)");
    assert_eq!(
        said(|f| (f.priority, f.mark) = (-1, 0xbeef)),
        "all_reduce of 1000 f32, sum, priority -1, mark 0000beef (operation 17)"
    );
    assert_eq!(said(|f| f.collective = 99), "unknown collective 99 (operation 17)");
    assert_eq!(
        said(|f| (f.dtype, f.op) = (98, 97)),
        "all_reduce of 1000 unknown type 98, unknown operation 97 (operation 17)"
    );
}

type Change = fn(&mut Fingerprint);

/// Each field in turn, with the name it goes by.
const CHANGES: [(&str, Change); 10] = [
    ("sequence", |f| f.sequence += 1),
    ("collective", |f| f.collective ^= 3),
    ("element type", |f| f.dtype ^= 1),
    ("reduce operation", |f| f.op ^= 1),
    ("fold order", |f| f.order ^= 1),
    ("root", |f| f.root += 1),
    ("count", |f| f.count += 1),
    ("plan", |f| f.plan ^= 1 << 63),
    ("priority", |f| f.priority = -1),
    ("mark", |f| f.mark = 1),
];

#[test]
fn differences_are_named() {
    assert!(call().difference(&call()).is_empty());
    for (name, change) in CHANGES {
        let mut other = call();
        change(&mut other);
        assert_eq!(call().difference(&other), [name]);
    }
    let other = Fingerprint { collective: 3, root: 1, plan: 8, ..call() };
    assert_eq!(other.difference(&call()), ["collective", "root"]);
}

/// A single difference shows in the rolling hash, and never heals.
#[test]
fn the_rolling_hash_remembers() {
    for (name, change) in CHANGES {
        let mut other = call();
        change(&mut other);
        let (mut here, mut there) = (roll(0, &call()), roll(0, &other));
        for sequence in 1..2000 {
            assert_ne!(here, there, "a difference in {name} was forgotten after {sequence} operations");
            let next = Fingerprint { sequence, ..call() };
            (here, there) = (roll(here, &next), roll(there, &next));
        }
    }
}

/// Flipping one bit of a fingerprint flips about half of the hash's.
#[test]
fn the_rolling_hash_mixes() {
    let mut flipped = 0;
    for bit in 0..64 {
        let other = Fingerprint { count: 1000 ^ (1 << bit), ..call() };
        flipped += (roll(0, &call()) ^ roll(0, &other)).count_ones();
    }
    assert!((64 * 28..64 * 36).contains(&flipped), "{flipped} of {} bits flipped", 64 * 64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn headers_round_trip(header in any_header()) {
        prop_assert_eq!(Header::decode(&header.encode(crc32c), crc32c), Ok(header));
    }

    #[test]
    fn fingerprints_round_trip(fingerprint in any_fingerprint()) {
        prop_assert_eq!(Fingerprint::decode(&fingerprint.encode(crc32c), crc32c), Ok(fingerprint));
    }
}
