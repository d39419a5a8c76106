//! The rank in Rust: README.md says what it does.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use leafpack::{
    all_reduce, barrier, broadcast, broadcast_new, key, AllReduceOptions, CallOptions, ErrorCode, ErrorKind, Group,
    GroupOptions, NonTensor, Tensor, TensorDict,
};

/// (r + 1) / (i + divisor), a division of numbers of type T.
macro_rules! fractions {
    ($type:ty, $rank:expr, $count:expr, $divisor:expr) => {
        (0..$count).map(|i| ($rank + 1) as $type / (i + $divisor) as $type).collect::<Vec<$type>>()
    };
}

fn weight(rank: i32) -> leafpack::Result<Tensor<'static>> {
    Tensor::from_vec(fractions!(f32, rank, 6, 3), &[2, 3])
}

fn make_tree(rank: i32, biases: usize) -> leafpack::Result<TensorDict<'static>> {
    let mut tree = TensorDict::new();
    tree.set(["encoder", "weight"], weight(rank)?)?;
    tree.set(["encoder", "bias"], Tensor::from_vec(fractions!(f64, rank, biases, 7), &[biases])?)?;
    tree.set(key!["layers", 0], Tensor::from_vec(vec![i64::from(rank + 1)], &[])?)?;
    tree.set("large", Tensor::from_vec(fractions!(f32, rank, 100_000, 3), &[100_000])?)?;
    Ok(tree)
}

fn create_file(name: &str, rank: i32) -> BufWriter<File> {
    let folder = std::env::var_os("TEST_TMPDIR").expect("TEST_TMPDIR is set");
    BufWriter::new(File::create(Path::new(&folder).join(format!("{name}.{rank}"))).expect("a file can be made"))
}

fn write_leaves(tree: &TensorDict<'_>, rank: i32) -> leafpack::Result<()> {
    let mut file = create_file("result", rank);
    for leaf in tree.leaves()? {
        file.write_all(leaf.tensor()?.as_bytes()?).expect("the leaf is written");
    }
    file.flush().expect("the leaves are written");
    Ok(())
}

fn mismatch(group: &Group, rank: i32) -> leafpack::Result<()> {
    let mut tree = make_tree(rank, if rank == 1 { 5 } else { 4 })?;
    let error = all_reduce(&mut tree, group, &AllReduceOptions::default()).expect_err("the ranks disagree");
    assert_eq!(error.code(), ErrorCode::FailedPrecondition);
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert_eq!(error.path(), "encoder.bias");
    let mut file = create_file("error", rank);
    writeln!(file, "{}", error.message()).and_then(|()| file.flush()).expect("the text is written");
    Ok(())
}

fn broadcast_tree(group: &Group, rank: i32) -> leafpack::Result<()> {
    let tree = if rank == 0 {
        let mut tree = TensorDict::new();
        tree.set(["encoder", "weight"], weight(0)?)?;
        tree.set_non_tensor("step", 7)?;
        tree.set_non_tensor("note", "from rank 0")?;
        broadcast(&mut tree, 0, group, &CallOptions::default())?;
        tree
    } else {
        broadcast_new(0, group, &CallOptions::default())?
    };
    let got = tree.get(["encoder", "weight"])?;
    assert_eq!(got.sizes(), [2, 3]);
    assert_eq!(got.as_slice::<f32>()?, fractions!(f32, 0, 6, 3));
    assert_eq!(tree.get_non_tensor("step")?, NonTensor::Int(7));
    assert_eq!(tree.get_non_tensor("note")?, NonTensor::String("from rank 0".into()));
    Ok(())
}

fn main() -> leafpack::Result<()> {
    let group = Group::from_environment(&GroupOptions::default())?;
    let rank = group.rank();
    let mut tree = make_tree(rank, 4)?;
    all_reduce(&mut tree, &group, &AllReduceOptions::default())?;
    write_leaves(&tree, rank)?;
    mismatch(&group, rank)?;
    broadcast_tree(&group, rank)?;
    barrier(&group, &CallOptions::default())
}
