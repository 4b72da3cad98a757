// A candidate for rms_norm in C++: float32 rows of 60, units of 4, 16 lanes. Same contract, other language, same bits.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

static float fold(float* x, int count) {
  for (int half = count / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] += x[i + half];
  return x[0];
}

static std::tuple<at::Tensor, at::Tensor> run(
    const at::Tensor& x_in, const std::optional<at::Tensor>& weight_in, double eps, const std::optional<at::Tensor>& residual_in) {
  const at::Tensor x = x_in.contiguous(), residual = residual_in->contiguous();
  at::Tensor y = at::empty_like(x), s = at::empty_like(x);
  const float* weight = weight_in ? weight_in->const_data_ptr<float>() : nullptr;
  for (int64_t row = 0; row < x.size(0); ++row) {
    const float *a = x.const_data_ptr<float>() + row * 60, *b = residual.const_data_ptr<float>() + row * 60;
    float *out = y.mutable_data_ptr<float>() + row * 60, *sum = s.mutable_data_ptr<float>() + row * 60;
    float square[64] = {}, lane[16];
    for (int i = 0; i < 60; ++i) {
      sum[i] = a[i] + b[i];
      square[i] = sum[i] * sum[i];
    }
    for (int i = 0; i < 16; ++i) lane[i] = fold(square + 4 * i, 4);
    const float r = 1.0f / std::sqrt(fold(lane, 16) / 60.0f + static_cast<float>(eps));
    for (int i = 0; i < 60; ++i) {
      float value = sum[i] * r;
      if (weight) value *= weight[i];
      out[i] = std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
    }
  }
  return {y, s};
}

TORCH_LIBRARY_FRAGMENT(samebits_candidate, m) {
  m.def("run(Tensor x, Tensor? weight, float eps, Tensor? residual=None) -> (Tensor, Tensor)", &run);
}
