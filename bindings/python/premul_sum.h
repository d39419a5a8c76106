// The op that multiplies before it adds, as Python holds it.
#ifndef LEAFPACK_BINDINGS_PYTHON_PREMUL_SUM_H_
#define LEAFPACK_BINDINGS_PYTHON_PREMUL_SUM_H_

namespace leafpack::python {

struct PremulSumOp {
  double factor = 1;
};

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_PREMUL_SUM_H_
