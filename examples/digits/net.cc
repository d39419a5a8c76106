#include "examples/digits/net.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace leafpack::digits {

Net::Net(uint64_t seed, int64_t hidden1, int64_t hidden2) {
  std::mt19937_64 random(seed);
  const auto add = [&](const std::string& layer, const std::string& name, at::Tensor value) {
    value.set_requires_grad(true);
    at::Tensor grad = at::zeros_like(value);
    value.mutable_grad() = grad;
    parameters_.push_back({layer, name, value, grad, at::zeros_like(grad)});
  };
  const auto add_layer = [&](const std::string& layer, int64_t in, int64_t out) {
    at::Tensor weight = at::empty({out, in}, at::kFloat);
    const double bound = std::sqrt(3.0 / static_cast<double>(in));  // keeps the variance
    float* data = weight.mutable_data_ptr<float>();
    for (int64_t i = 0; i < out * in; ++i) {
      const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
      data[i] = static_cast<float>((2 * unit - 1) * bound);
    }
    add(layer, "weight", weight);
    add(layer, "bias", at::zeros({out}, at::kFloat));
  };
  add_layer("hidden1", 64, hidden1);
  add_layer("hidden2", hidden1, hidden2);
  add_layer("out", hidden2, 10);
}

at::Tensor Net::Forward(const at::Tensor& pixels) const {
  at::Tensor x = pixels;
  for (size_t i = 0; i < parameters_.size(); i += 2) {
    x = at::linear(x, parameters_[i].value, parameters_[i + 1].value);
    if (i + 2 < parameters_.size()) x = at::tanh(x);
  }
  return x;
}

void Net::ZeroGrad() {
  at::NoGradGuard no_grad;
  for (Parameter& p : parameters_) p.grad.zero_();
}

void Net::Step(double rate, double momentum) {
  at::NoGradGuard no_grad;
  for (Parameter& p : parameters_) {
    p.velocity.mul_(momentum).add_(p.grad);
    p.value.sub_(p.velocity, rate);
  }
}

}  // namespace leafpack::digits
