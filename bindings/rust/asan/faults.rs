//! Does wrong, on purpose, what its argument says.

use leafpack::{Tensor, TensorDict};

fn tree() -> TensorDict<'static> {
    let mut tree = TensorDict::new();
    tree.set("x", Tensor::from_vec(vec![1.0f32; 64], &[64]).unwrap()).unwrap();
    tree
}

fn main() {
    let fault = std::env::args().nth(1).unwrap();
    let tree = tree();
    let slice = tree.slice::<f32>("x").unwrap();
    match fault.as_str() {
        "nothing" => {}
        // The library gives the vector back when the tree goes.
        "use_after_free" => {
            let memory = slice.as_ptr();
            drop(tree);
            println!("{}", unsafe { std::ptr::read_volatile(memory) });
        }
        "overflow" => println!("{}", unsafe { std::ptr::read_volatile(slice.as_ptr().add(slice.len())) }),
        "leak" => std::mem::forget(std::hint::black_box(vec![slice[0]; 1000])),
        _ => panic!("no fault {fault}"),
    }
}
