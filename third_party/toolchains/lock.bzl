"""Debian packages of the hermetic toolchains. Written by lock.py; do not edit.

Per tree, in the order of unpacking: package, version, path below the archive's root, sha256, in one string.
"""

LOCK = {
    "llvm_x86_64": [
        "clang-19 1:19.1.7-3~deb12u1 pool/main/l/llvm-toolchain-19/clang-19_19.1.7-3~deb12u1_amd64.deb 89ab931a9bbfd567a76df3141af5d5ec67b01d800150e614f2c9bf4671da9b08",
        "libclang-common-19-dev 1:19.1.7-3~deb12u1 pool/main/l/llvm-toolchain-19/libclang-common-19-dev_19.1.7-3~deb12u1_amd64.deb 811c2d398ad772204ec05ffde485cbbc4c210abc5dcf0068ff9ca3e647591ce7",
        "libclang-cpp19 1:19.1.7-3~deb12u1 pool/main/l/llvm-toolchain-19/libclang-cpp19_19.1.7-3~deb12u1_amd64.deb 5daa784e1d747db320c16604729ffa805e6bfd72d3ac0b7cb0ee5f1a7ebc8aae",
        "libclang-rt-19-dev 1:19.1.7-3~deb12u1 pool/main/l/llvm-toolchain-19/libclang-rt-19-dev_19.1.7-3~deb12u1_amd64.deb 872464dcd1aa3538e417e177f74a4c549b19313acaa1fe9465d32b936e9ef8eb",
        "libedit2 3.1-20221030-2 pool/main/libe/libedit/libedit2_3.1-20221030-2_amd64.deb 1cf14abf2716d3279db12d0657a5737cf70074a1e71d3bdf73206625e3c89ce6",
        "libbsd0 0.11.7-2 pool/main/libb/libbsd/libbsd0_0.11.7-2_amd64.deb bb31cc8b40f962a85b2cec970f7f79cc704a1ae4bad24257a822055404b2c60b",
        "libc6 2.36-9+deb12u14 pool/main/g/glibc/libc6_2.36-9+deb12u14_amd64.deb ba4f88f73dbc3ae9055f3c20f4523bfdbaf1ad13ff95e258924f77d20b4fbedf",
        "libffi8 3.4.4-1 pool/main/libf/libffi/libffi8_3.4.4-1_amd64.deb 6d9f6c25c30efccce6d4bceaa48ea86c329a3432abb360a141f76ac223a4c34a",
        "libgcc-s1 12.2.0-14+deb12u1 pool/main/g/gcc-12/libgcc-s1_12.2.0-14+deb12u1_amd64.deb 3016e62cb4b7cd8038822870601f5ed131befe942774d0f745622cc77d8a88f7",
        "libgmp10 2:6.2.1+dfsg1-1.1 pool/main/g/gmp/libgmp10_6.2.1+dfsg1-1.1_amd64.deb 187aedef2ed763f425c1e523753b9719677633c7eede660401739e9c893482bd",
        "libicu72 72.1-3+deb12u1 pool/main/i/icu/libicu72_72.1-3+deb12u1_amd64.deb f7f6f99c6d7b025914df2447fc93e11d22c44c0c8bdd8b6f36691c9e7ddcef88",
        "libllvm19 1:19.1.7-3~deb12u1 pool/main/l/llvm-toolchain-19/libllvm19_19.1.7-3~deb12u1_amd64.deb 6edf3a8b28495cdba883d9760e0dca1a81983fc497a5f989dc64d0d96d23b4aa",
        "liblzma5 5.4.1-1+deb12u1 pool/main/x/xz-utils/liblzma5_5.4.1-1+deb12u1_amd64.deb f96d8876b53ec89d76a992bc199679b818cf518225a768954d9451fb556a4eb7",
        "libmd0 1.0.4-2 pool/main/libm/libmd/libmd0_1.0.4-2_amd64.deb 03539fd30c509e27101d13a56e52eda9062bdf1aefe337c07ab56def25a13eab",
        "libstdc++6 12.2.0-14+deb12u1 pool/main/g/gcc-12/libstdc++6_12.2.0-14+deb12u1_amd64.deb 5cd3171216d4ab0fc911cfe9c35509bf2dd8f47761c43b7f6a4296701551a24d",
        "libtinfo6 6.4-4 pool/main/n/ncurses/libtinfo6_6.4-4_amd64.deb 072d908f38f51090ca28ca5afa3b46b2957dc61fe35094c0b851426859a49a51",
        "libxml2 2.9.14+dfsg-1.3~deb12u6 pool/main/libx/libxml2/libxml2_2.9.14+dfsg-1.3~deb12u6_amd64.deb 4460e39dda10a815881374217cde08474747cfa018358cd8612c14b390eff53b",
        "libz3-4 4.8.12-3.1 pool/main/z/z3/libz3-4_4.8.12-3.1_amd64.deb 6221ca25ad5abcfbe1965801029d85a88b4775320384b4b716de8fab7a4d2f7a",
        "libzstd1 1.5.4+dfsg2-5 pool/main/libz/libzstd/libzstd1_1.5.4+dfsg2-5_amd64.deb 6315b5ac38b724a710fb96bf1042019398cb656718b1522279a5185ed39318fa",
        "lld-19 1:19.1.7-3~deb12u1 pool/main/l/llvm-toolchain-19/lld-19_19.1.7-3~deb12u1_amd64.deb 416e084363a16a7060eaa6343ed641dfe864b8208c39170ee00a5679e4b486a2",
        "llvm-19 1:19.1.7-3~deb12u1 pool/main/l/llvm-toolchain-19/llvm-19_19.1.7-3~deb12u1_amd64.deb f91492c5b361ff12f540b9f6145cf638b5e0fb3f145fceabd6c4b9540eab4bf9",
        "patchelf 0.14.3-1+b1 pool/main/p/patchelf/patchelf_0.14.3-1+b1_amd64.deb 0364b90e81faabbb9569076063952c7bcbf07f83d954a2f2602a163d65be60e6",
        "zlib1g 1:1.2.13.dfsg-1 pool/main/z/zlib/zlib1g_1.2.13.dfsg-1_amd64.deb d7dd1d1411fedf27f5e27650a6eff20ef294077b568f4c8c5e51466dc7c08ce4",
    ],
    "sysroot_x86_64": [
        "libc6 2.31-13+deb11u11 pool/main/g/glibc/libc6_2.31-13+deb11u11_amd64.deb 05f7264da867b37f4c5ce49266b558ea1e81e05a9464f623152fca70f3550282",
        "libc6-dev 2.31-13+deb11u11 pool/main/g/glibc/libc6-dev_2.31-13+deb11u11_amd64.deb e7f7b45d9c5cfcf37609f0b6efd3c645272c812144703af89dfd32218fcb0fd3",
        "linux-libc-dev 5.10.223-1 pool/main/l/linux/linux-libc-dev_5.10.223-1_amd64.deb e3be603bd12377bb90fcfb0f2048ca3a81c886e49d6f09945b82159d1c54f7b2",
        "libcrypt1 1:4.4.18-4 pool/main/libx/libxcrypt/libcrypt1_4.4.18-4_amd64.deb f617952df0c57b4ee039448e3941bccd3f97bfff71e9b0f87ca6dae15cb3f5ef",
        "libcrypt-dev 1:4.4.18-4 pool/main/libx/libxcrypt/libcrypt-dev_4.4.18-4_amd64.deb 8b04bf00b8c43360d9ba3adec209db290168ba3526d4aef3175fb84372b1bebf",
        "libgcc-s1 10.2.1-6 pool/main/g/gcc-10/libgcc-s1_10.2.1-6_amd64.deb e478f2709d8474165bb664de42e16950c391f30eaa55bc9b3573281d83a29daf",
        "libgcc-10-dev 10.2.1-6 pool/main/g/gcc-10/libgcc-10-dev_10.2.1-6_amd64.deb 3b711374092b84e732c4e73cf33e02cff02e34a5f105eb6467de8d9038e4cd9d",
        "libstdc++6 10.2.1-6 pool/main/g/gcc-10/libstdc++6_10.2.1-6_amd64.deb 5c155c58935870bf3b4bfe769116841c0d286a74f59eccfd5645693ac23f06b1",
        "libstdc++-10-dev 10.2.1-6 pool/main/g/gcc-10/libstdc++-10-dev_10.2.1-6_amd64.deb 20b1f56863dcc5f187d6cb53b2aa6149bd013be4ec67e10c2c31a22fda619a01",
    ],
    "sysroot_aarch64": [
        "libc6 2.31-13+deb11u11 pool/main/g/glibc/libc6_2.31-13+deb11u11_arm64.deb baaa9aa184e2f21738c5819055e6740cc5b22f198e3f416e33f82b40ff6933d8",
        "libc6-dev 2.31-13+deb11u11 pool/main/g/glibc/libc6-dev_2.31-13+deb11u11_arm64.deb 28d478134722dcd4b0bd2045a199301d18713bf95947b9fce66634e7aeacab2e",
        "linux-libc-dev 5.10.223-1 pool/main/l/linux/linux-libc-dev_5.10.223-1_arm64.deb 8b6374a64412d33eac61d74f77b8f932da4b8a707ea8a614791e2a35b8917618",
        "libcrypt1 1:4.4.18-4 pool/main/libx/libxcrypt/libcrypt1_4.4.18-4_arm64.deb 22b586b29e840dabebf0bf227d233376628b87954915d064bc142ae85d1b7979",
        "libcrypt-dev 1:4.4.18-4 pool/main/libx/libxcrypt/libcrypt-dev_4.4.18-4_arm64.deb 5309fdf445acc72794b9d134e9625746ffad2b865c6432abcd08ef097587bde1",
        "libgcc-s1 10.2.1-6 pool/main/g/gcc-10/libgcc-s1_10.2.1-6_arm64.deb e2fcdb378d3c1ad1bcb64d4fb6b37aab44011152beca12a4944f435a2582df1f",
        "libgcc-10-dev 10.2.1-6 pool/main/g/gcc-10/libgcc-10-dev_10.2.1-6_arm64.deb 80fc73d339ada2e194175afe83cd89014565242153b6e3c2128849d8817da367",
        "libstdc++6 10.2.1-6 pool/main/g/gcc-10/libstdc++6_10.2.1-6_arm64.deb 7869aa540cc46e9f3d4267d5bde2af0e5b429a820c1d6f1a4cfccfe788c31890",
        "libstdc++-10-dev 10.2.1-6 pool/main/g/gcc-10/libstdc++-10-dev_10.2.1-6_arm64.deb cee7ca63613b50a8a51cc670db385c7e6d1181b72c94148fc8b7992e4570782d",
        "zlib1g 1:1.2.11.dfsg-2+deb11u2 pool/main/z/zlib/zlib1g_1.2.11.dfsg-2+deb11u2_arm64.deb e3963985d1a020d67ffd4180e6f9c4b5c600b515f0c9d8fda513d7a0e48e63a1",
    ],
    "python_aarch64": [
        "libpython3.11-dev 3.11.2-6+deb12u8 pool/main/p/python3.11/libpython3.11-dev_3.11.2-6+deb12u8_arm64.deb 454a191a37dd86674c309691904be69d499f060e643c1f8efc8b82078967cd48",
    ],
    "qemu_x86_64": [
        "qemu-user 1:10.0.13+ds-0+deb13u1 pool/main/q/qemu/qemu-user_10.0.13+ds-0+deb13u1_amd64.deb ca6ede739327a20ae5a3498230c8a3a9a072c586e131bc6bcc1201eb1725e336",
    ],
}
