//! Every rank has gradients of its own; one call makes all of them the average.
//!
//!     ./bazelw run //distributed/launch -- -n 4 -- $PWD/bazel-bin/bindings/rust/average

use leafpack::{all_reduce, key, AllReduceOptions, Group, GroupOptions, ReduceOp, Tensor, TensorDict};

fn main() -> leafpack::Result<()> {
    let group = Group::from_environment(&GroupOptions::default())?;
    let (rank, size) = (group.global_rank() as f32, group.size() as f32);

    // Memory of this program, reduced where it lies.
    let mut weight: Vec<f32> = (0..6).map(|element| element as f32 + rank).collect();
    let mut bias = vec![rank; 2];
    {
        let mut grads = TensorDict::new();
        grads.set(["encoder", "weight"], Tensor::from_slice(&mut weight, &[2, 3])?)?;
        grads.set(key!["heads", 0, "bias"], Tensor::from_slice(&mut bias, &[2])?)?;
        all_reduce(&mut grads, &group, &AllReduceOptions::with_op(ReduceOp::Avg))?;
        for leaf in grads.leaves()? {
            println!("{}: {:?}", leaf.path(), leaf.as_slice::<f32>()?);
        }
    }

    let mean = (size - 1.0) / 2.0;
    assert_eq!(weight, (0..6).map(|element| element as f32 + mean).collect::<Vec<_>>());
    assert_eq!(bias, [mean; 2]);

    // Ranks that disagree get one error, and nothing has changed.
    if size > 1.0 {
        let mut other = TensorDict::new();
        other.set(format!("only_on_{rank}"), Tensor::from_vec(vec![rank], &[1])?)?;
        let error = all_reduce(&mut other, &group, &AllReduceOptions::default()).expect_err("the trees differ");
        println!("{} ({:?}, ranks {:?})", error.message(), error.kind(), error.ranks());
        assert_eq!(error.path(), "only_on_0");
    }
    Ok(())
}
