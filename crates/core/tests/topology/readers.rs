//! Readers: the spellings that people publish, errors with their places, and texts that are damaged.

use super::{MATRICES, TEXTS, text, topology};
use herringbone_core::topology::{LinkKind, LinkMatrix, NodeKind, Topology, read};

fn kind(topology: &Topology, from: &str, to: &str) -> Option<LinkKind> {
    let number = |name: &str| topology.nodes().iter().position(|node| node.name == name).unwrap();
    let (from, to) = (number(from), number(to));
    topology.links().iter().find(|link| (link.from, link.to) == (from, to)).map(|link| link.kind)
}

fn problem(text: &str) -> String {
    read(text, None).unwrap_err().to_string()
}

#[test]
fn published_texts_are_read() {
    for name in TEXTS {
        let read = topology(name);
        assert_eq!(read.ranks().len(), 8, "{name}");
        assert_eq!(read.components().len(), 1, "{name}");
        assert_eq!(read.links().len(), read.nodes().len() * (read.nodes().len() - 1), "{name}");
    }
    let dgx = topology("dgx1v_4x_ib.txt");
    assert_eq!(kind(&dgx, "GPU0", "GPU3"), Some(LinkKind::NvLink(2)));
    assert_eq!(kind(&dgx, "mlx5_1", "GPU2"), Some(LinkKind::Pix));
    assert_eq!(dgx.warnings(), [""; 0]);
    let named = topology("dgx_a100_8x_10nic.txt");
    let nic = named.nodes().iter().find(|node| node.name == "NIC9").unwrap();
    assert_eq!((nic.kind, nic.device.as_deref()), (NodeKind::Nic, Some("mlx5_9")));
}

/// The weights that MXNet gives: NVLinks alone where they connect all, else 1 / GPUs for the rest.
#[test]
fn texts_get_mxnets_weights() {
    let weights = |name: &str| super::links(name).weights().to_vec();
    assert_eq!(weights("dgx1v_4x_ib.txt"), weights("derived_dgx1v_weights_nvlink_only"));
    assert_eq!(weights("p4d_24xlarge_a100_8x.txt"), weights("derived_nvswitch8_uniform"));
    assert_eq!(weights("pcie_8x_pix_phb_sys_1nic.txt"), weights("derived_pcie8_all_nonp2p"));
    let pairs = super::links("a100_pcie_8x_nvlink_bridge_pairs_truncated_nic.txt");
    assert_eq!((pairs.weight(0, 1), pairs.weight(0, 2), pairs.weight(6, 7)), (2.0, 0.125, 2.0));
}

#[test]
fn a_cut_row_of_a_nic_is_a_warning() {
    let cut = topology("a100_pcie_8x_nvlink_bridge_pairs_truncated_nic.txt");
    assert_eq!(cut.warnings(), ["the text has no row of NIC0"]);
    // What the row lacks the others have.
    assert_eq!(kind(&cut, "NIC0", "GPU6"), Some(LinkKind::Phb));
    let text = "GPU0 GPU1 NIC0\nGPU0 X NV1 PI";
    assert!(problem(text).contains("the row of GPU1"));
    let cut = read("GPU0 GPU1 NIC0\nGPU0 X NV1\nGPU1 NV1 X PI\nNIC0 PIX\n", None).unwrap();
    assert_eq!(cut.warnings().len(), 3);
    assert_eq!(kind(&cut, "NIC0", "GPU0"), Some(LinkKind::Pix));
}

#[test]
fn spellings_do_not_count() {
    let plain = read("GPU0 GPU1 CPU Affinity\nGPU0 X NV4 0-3\nGPU1 NV4 X 4-7\n", None).unwrap();
    for text in [
        "\u{1b}[4mGPU0\tGPU1\tCPU Affinity\u{1b}[0m\r\nGPU0\t X \tNV4\t0-3\r\nGPU1\tNV4\t X \t4-7\r\n",
        "$ nvidia-smi topo -m\n\tGPU0\tGPU1\tNUMA Affinity\tGPU NUMA ID\nGPU0\tX\tNV4\t\tN/A\nGPU1\tNV4\tX\t0\tN/A\n",
        "CPU Affinity GPU0 GPU1\nGPU0 0-3,8-11 X NV4\nGPU1 4-7 NV4 X\n",
        "\u{feff}GPU0 GPU1\nGPU0 X NV4\nMIG 3g.20gb Device 0: (UUID: MIG-1)\nGPU1 NV4 X\n\nLegend:\n  X = Self\n",
    ] {
        let found = read(text, None).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!((found.nodes(), found.links()), (plain.nodes(), plain.links()), "{text}");
    }
    let old = read("GPU0 GPU1\nGPU0 X SOC\nGPU1 SOC X\n", None).unwrap();
    assert_eq!(kind(&old, "GPU0", "GPU1"), Some(LinkKind::Sys));
}

#[test]
fn errors_of_texts_say_where_and_what() {
    for (text, said) in [
        ("GPU0 GPU1\nGPU0 X NV19\nGPU1 NV1 X\n", "line 2, column 8: \"NV19\"; expected X, NV1 to NV18"),
        (
            "GPU0 GPU1\nGPU0 X\nGPU1 NV1 X\n",
            "line 2, column 7: the end of the row; expected a link of GPU0 to GPU1",
        ),
        ("GPU0 GPU1\nGPU0 X NV1\n", "line 2, column 1: the end of the text; expected the row of GPU1"),
        ("GPU0 GPU1\nGPU0 NV1 X\n", "line 2, column 6: \"NV1\" in the column of its own; expected X"),
        ("GPU0 GPU1\nGPU0 X NV1\nGPU0 X NV1\n", "line 3, column 1: the row of GPU0 again"),
        ("GPU0 GPU0\n", "line 1, column 6: \"GPU0\" again"),
        ("GPU0 GPU1\nGPU0 X NV1\nrandom words\n", "line 3, column 1: \"random\"; expected the row of GPU1"),
    ] {
        assert!(problem(text).starts_with(said), "{}", problem(text));
    }
}

#[test]
fn matrices_are_read_from_json_and_csv() {
    let expected = LinkMatrix::of_weights(&[vec![0.0, 2.5], vec![1.0, 0.0]]).unwrap();
    for text in [
        "[[0, 2.5], [1, 0]]",
        "{\"matrix\": [[0, 2.5], [1.0, 0]], \"names\": [\"a\", \"b\"], \"note\": null}",
        "[{\"name\": \"only\", \"matrix\": [[9, 2.5], [1e0, 9]]}]",
        "0,2.5\n1,0\n",
        "# weights\n0; 2.5\n\n1; 0",
        "node,a,b\na,0,2.5\nb,1,0\n",
        "a\tb\n0\t2.5\n1\t0\n",
    ] {
        let found = read(text, None).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(LinkMatrix::of(&found).unwrap(), expected, "{text}");
    }
    for name in MATRICES {
        let found = topology(name);
        assert_eq!(read(&found.to_json(), None).unwrap(), found, "{name}");
    }
    let ranks = "{\"matrix\": [[0, 1, 2], [1, 0, 2], [2, 2, 0]], \"p2p\": [[0, 0, 1], [0, 0, 1], [1, 1, 0]]}";
    let links = LinkMatrix::of(&read(ranks, None).unwrap()).unwrap();
    assert_eq!((links.weight(0, 1), links.weight(0, 2)), (0.0, 2.0));
}

/// What is read of a node looks at all before it, so a list of hundreds of thousands is refused by its length.
#[test]
fn lists_that_are_too_long_are_refused_before_their_items_are_read() {
    let nodes = |count: usize| vec!["{\"name\": \"same\", \"kind\": \"host\"}"; count].join(", ");
    let text = |rest: &str, count| format!("{{\"nodes\": [{}], {rest}}}", nodes(count));
    let many = |item: &str, count: usize| vec![item; count].join(", ");
    for (text, said) in [
        (text("\"links\": []", 257), "line 1, column 11: 257 nodes; expected at most 256 nodes"),
        (text(&format!("\"ports\": [{}]", many("{}", 257)), 1), "257 ports; expected at most 256 ports"),
        (text(&format!("\"sites\": [{}]", many("{}", 256)), 1), "256 sites; expected at most 255 sites"),
    ] {
        assert!(problem(&text).contains(said), "{}", problem(&text));
    }
}

#[test]
fn errors_of_matrices_say_where_and_what() {
    for (text, said) in [
        ("[[0, 1],\n [1]]", "line 2, column 2: row 1 with 1 numbers; expected 2 numbers, as there are rows"),
        ("[[0, -1], [1, 0]]", "line 1, column 6: -1; expected a number that is finite and not negative"),
        ("[[0, NaN], [1, 0]]", "line 1, column 6: NaN; expected a number that is finite"),
        ("[[0, \"x\"], [1, 0]]", "line 1, column 6: \"x\"; expected a number"),
        ("[[0, 1], [1, 0]", "line 1, column 16: the end of the text; expected a comma or ']'"),
        ("{\"a\": 1}", "line 1, column 1: an object; expected a matrix"),
        ("[]", "line 1, column 1: 0 rows; expected 1 to 256 rows"),
        ("0,1\n1\n", "line 2, column 1: a row of 1 numbers; expected 2 numbers"),
        ("0,1\nx,0\n", "line 2, column 1: \"x\"; expected a number"),
        ("0,1\n-2,0\n", "line 2, column 1: -2; expected a number that is finite"),
        ("", "line 1, column 1: nothing; expected the text of nvidia-smi"),
        (
            "It was a\ndark night.\n",
            "line 1, column 1: \"It\"; expected the text of nvidia-smi topo -m, NCCL's XML",
        ),
        (
            "a,b,a\n0,1,1\n1,0,1\n1,1,0\n",
            "line 1, column 5: \"a\" again; expected a name that no other node has",
        ),
        (
            "{\"matrix\": [[0, 1], [1, 0]], \"names\": [\"a\", \"a\"]}",
            "line 1, column 45: \"a\" again; expected a name that no other node has",
        ),
        (
            "{\"matrix\": [[0]], \"matrix\": [[0]]}",
            "line 1, column 19: \"matrix\" again; expected each name once",
        ),
        (
            "{\"matrix\": [[0, 1], [1, 0]], \"bandwith\": [[0, 1], [1, 0]]}",
            "line 1, column 42: a value of \"bandwith\"; expected one of \"bandwidth\"",
        ),
        ("{\"Matrix\": [[0]]}", "line 1, column 12: a value of \"Matrix\"; expected one of \"matrix\""),
        (
            "{\"matrix\": [[0, 2], [1, 0]], \"bandwidth\": [[0, 0], [1, 0]]}",
            "line 1, column 43: a bandwidth of 0 from node 0 to node 1, whose link weighs 2; expected a bandwidth above 0",
        ),
        ("[[0, 1e300], [1, 0]]", "line 1, column 6: 1e300; expected a number that is finite"),
        (
            "{\"nodes\": [{\"name\": \"a\", \"kind\": \"gpu\"}], \"links\": [{\"from\": 0, \"to\": 1}]}",
            "line 1, column 71: 1; expected the number of a node, below 1",
        ),
    ] {
        assert!(problem(text).starts_with(said), "{text}: {}", problem(text));
    }
    let many = format!("[{}]", vec![format!("[{}]", vec!["0"; 257].join(",")); 257].join(","));
    assert!(problem(&many).contains("257 rows; expected 1 to 256 rows"));
    let unnamed = read(&text("link_matrices.json"), None).unwrap_err().to_string();
    assert!(unnamed.contains("7 topologies; expected one to be named after the file"), "{unnamed}");
    let unknown = read(&text("link_matrices.json"), Some("dgx")).unwrap_err().to_string();
    assert!(unknown.contains("dgx1v_p3_16xlarge_raw"), "{unknown}");
    let large = read(&vec![vec!["1"; 65].join(","); 65].join("\n"), None).unwrap();
    assert!(LinkMatrix::of(&large).unwrap_err().to_string().contains("the topology has 65"));
}

#[test]
fn the_xml_of_nccl_is_read() {
    let system = read(&text("nccl_2x2.xml"), None).unwrap();
    let names: Vec<&str> = system.nodes().iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "CPU0", "CPU1"]);
    for (from, to, expected) in [
        ("GPU0", "GPU2", LinkKind::NvLink(2)),
        ("GPU0", "GPU1", LinkKind::Pix),
        ("GPU1", "NIC0", LinkKind::Pix),
        ("GPU1", "GPU3", LinkKind::Sys),
        ("GPU2", "GPU3", LinkKind::Phb),
    ] {
        assert_eq!(kind(&system, from, to), Some(expected), "{from} to {to}");
    }
    // NVLinks do not connect all four.
    let links = LinkMatrix::of(&system).unwrap();
    assert_eq!((links.weight(0, 2), links.weight(0, 1)), (2.0, 0.25));
    for (text, said) in [
        ("<system>\n<cpu></system>", "line 2, column 6: </system>; expected </cpu>"),
        ("<system version=1/>", "line 1, column 17: '1'; expected a value in quotation marks"),
        ("<graphs/>", "line 1, column 1: <graphs>; expected <system>"),
        ("<system/>", "line 1, column 1: a system without GPUs"),
        ("<system><cpu><gpu/></cpu></system>", "line 1, column 14: <gpu> without dev"),
        ("<system><cpu>", "line 1, column 14: the end of the text; expected </cpu>"),
    ] {
        assert!(problem(text).starts_with(said), "{}", problem(text));
    }
}

#[test]
fn devices_of_two_hosts_have_names_of_their_own() {
    let host = |hash| {
        format!("<cpu numaid=\"0\" host_hash=\"{hash}\"><pci busid=\"a\"><gpu dev=\"0\"/></pci></cpu>")
    };
    let system = read(&format!("<system>{}{}</system>", host("0x1"), host("0x2")), None).unwrap();
    let names: Vec<&str> = system.nodes().iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["GPU0", "GPU0 (2)", "CPU0", "CPU0 (2)"]);
    let again = read(&system.to_json(), None).unwrap();
    assert_eq!((again.nodes(), again.links()), (system.nodes(), system.links()));
}
