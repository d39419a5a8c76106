// A small net for 8 x 8 images: two hidden layers, and plain gradient descent with momentum.
#ifndef LEAFPACK_EXAMPLES_DIGITS_NET_H_
#define LEAFPACK_EXAMPLES_DIGITS_NET_H_

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace leafpack::digits {

// Weights and biases of linear layers. The same seed gives the same weights in every process.
class Net {
 public:
  struct Parameter {
    std::string layer;  // "hidden1", "hidden2", "out"
    std::string name;   // "weight", "bias"
    at::Tensor value;   // requires grad
    at::Tensor grad;    // where backward adds to; the same memory for the whole training
    at::Tensor velocity;
  };

  Net(uint64_t seed, int64_t hidden1, int64_t hidden2);

  // Scores [n, 10] of images [n, 64].
  at::Tensor Forward(const at::Tensor& pixels) const;
  void ZeroGrad();
  // One step: velocity = momentum * velocity + grad; value -= rate * velocity.
  void Step(double rate, double momentum);

  const std::vector<Parameter>& parameters() const { return parameters_; }

 private:
  std::vector<Parameter> parameters_;
};

}  // namespace leafpack::digits

#endif  // LEAFPACK_EXAMPLES_DIGITS_NET_H_
