// Included before every source by the hermetic toolchains: takes those versions of libm's functions that
// every glibc has. The newer ones, of glibc 2.29, differ in how they report errors, and only in that: they
// call no handler of matherr.
#ifndef LEAFPACK_GLIBC_BASELINE_H_
#define LEAFPACK_GLIBC_BASELINE_H_

#if !defined(__ASSEMBLER__) && !defined(__CUDA_ARCH__)
__asm__(".symver exp,exp@GLIBC_@VERSION@");
__asm__(".symver exp2,exp2@GLIBC_@VERSION@");
__asm__(".symver log,log@GLIBC_@VERSION@");
__asm__(".symver log2,log2@GLIBC_@VERSION@");
__asm__(".symver pow,pow@GLIBC_@VERSION@");
#endif

#endif  // LEAFPACK_GLIBC_BASELINE_H_
