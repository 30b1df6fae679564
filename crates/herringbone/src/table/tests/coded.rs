//! Values that travel coded.

use super::{Servers, awkward, problem, sync};
use crate::{
    core::{
        codec::Codec,
        element::DType,
        table::{TableError, TableSpec, ValueCodec},
    },
    table::TableCodecs,
};

/// What a codec makes of rows, each by itself.
fn through(codec: ValueCodec, width: usize, rows: &[f32]) -> Vec<f32> {
    let each = rows.chunks(width).flat_map(|row| {
        let mut coded = Vec::new();
        codec.encode(width, row, &mut coded);
        codec.decode(width, 1, &coded).unwrap()
    });
    each.collect()
}

#[test]
fn coded_values_come_as_their_codec_makes_them_whatever_messages_they_are_in() {
    let servers = Servers::start(3);
    // More than fit one message of a server.
    let (rows, width) = (9000_u64, 24_usize);
    for codec in [Codec::Bf16, Codec::Fp16, Codec::Int8] {
        let codec = ValueCodec::new(codec).unwrap();
        let worker = servers.worker(0, 1);
        let table = worker.table(&format!("{codec:?}"), sync(rows, width as u32)).unwrap();
        let pushed: Vec<f32> = (0..rows as usize * width).map(|at| awkward(0, 1, at)).collect();
        let mut pulled = vec![0.0_f32; pushed.len()];
        table.set_codecs(TableCodecs { push: codec, ..TableCodecs::default() }).unwrap();
        table.push_range(0, &pushed, false).unwrap();
        table.pull_range(0, &mut pulled).unwrap();
        let expected = through(codec, width, &pushed);
        assert!(pulled == expected && pulled != pushed, "{codec:?}");
        table.set_codecs(TableCodecs { pull: codec, ..TableCodecs::default() }).unwrap();
        table.push_range(0, &pushed, false).unwrap();
        // In any order, and one of them twice.
        let keys = [8999, 0, 4500, 8999];
        let mut some = vec![0.0_f32; keys.len() * width];
        table.pull(&keys, &mut some).unwrap();
        let sums: Vec<f32> = keys
            .iter()
            .flat_map(|key| (*key as usize * width..).take(width))
            .map(|at| expected[at] + pushed[at])
            .collect();
        assert_eq!(some, through(codec, width, &sums), "{codec:?}");
    }
}

#[test]
fn other_elements_are_not_coded_and_an_infinite_row_is_none() {
    let servers = Servers::start(1);
    let worker = servers.worker(0, 1);
    let int8 = ValueCodec::new(Codec::Int8).unwrap();
    let codecs = TableCodecs { push: int8, pull: int8 };
    let doubles = worker.table("doubles", TableSpec { dtype: DType::F64, ..sync(5, 1) }).unwrap();
    let error = doubles.set_codecs(codecs).unwrap_err();
    assert!(matches!(problem(&error), TableError::Unusable(what) if what.contains("only f32")), "{error}");
    let table = worker.table("singles", sync(5, 2)).unwrap();
    table.set_codecs(codecs).unwrap();
    let error = table.push_range(3, &[1.0, 2.0, f32::INFINITY, 1.0], false).unwrap_err();
    assert!(matches!(problem(&error), TableError::Unusable(what) if what.contains("row 4 has")), "{error}");
    let largest = table.push_range(3, &[1.0, 2.0, f32::MAX, 1.0], false).unwrap_err();
    assert!(largest.to_string().contains("int8 cannot code"), "{largest}");
    table.push_range(3, &[127.0_f32, 1.0, 5.0, 5.0], false).unwrap();
    let mut rows = [0.0_f32; 4];
    table.pull_range(3, &mut rows).unwrap();
    assert_eq!(rows, [127.0, 1.0, 5.0, 5.0], "nothing of the refused push is there");
}
