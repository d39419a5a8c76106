//! Tells the linker where libleafpack.so is: in LEAFPACK_LIB_DIR, else where the linker looks itself.

use std::env;

fn main() {
    println!("cargo:rerun-if-env-changed=LEAFPACK_LIB_DIR");
    println!("cargo:rustc-link-lib=dylib=leafpack");
    if let Ok(folder) = env::var("LEAFPACK_LIB_DIR") {
        println!("cargo:rustc-link-search=native={folder}");
    }
}
