// Halves of a transformer layer: their parts one after another, without a way back to Python in between.
#include <cmath>
#include <vector>

#include "arguments.h"
#include "ops.h"
#include "parallel.h"
#include "tensor.h"

namespace wavecore {
namespace {

namespace py = pybind11;

// A weight [outputs, inputs] with its bias [outputs].
class Layer {
 public:
  Layer(const py::sequence& weights, size_t at, int64_t outputs, int64_t inputs, DType dtype)
      : weight_(Tensor::contiguous(py::object(weights[at]), 2)),
        bias_(Tensor::float32(py::object(weights[at + 1]), 1, dtype)) {
    require(weight_.dtype() == dtype && weight_.is({outputs, inputs}) && bias_.is({outputs}));
  }

  void fill(LinearArgs& args) const {
    args.weight = weight_.data();
    args.bias = bias_.data<const float>();
    args.outputs = weight_.size(0);
    args.inputs = weight_.size(1);
  }

 private:
  Tensor weight_, bias_;
};

// The rows of a hidden state [s, t, D], and what runs on them.
struct Rows3 {
  const Kernels& kernels;
  int64_t slots, tokens, frames, dim;
  float eps;
  DType dtype;
  int threads;

  int64_t count() const { return slots * tokens; }
  Rows dense(const void* data) const { return {data, tokens * dim, dim}; }

  // `base` is 1 for a modulation and 0 for a weight and bias of every row.
  void norm(const Rows& x, const Modulation& shift, const Modulation& scale, float base, void* out) const {
    LayerNormModulateArgs args{x.data, x.slot_stride, x.token_stride, shift, scale, out, tokens, tokens / frames,
                               dim, eps, base, dtype};
    parallel_for(count(), double(dim), threads, [&](int64_t begin, int64_t end) {
      kernels.layer_norm_modulate(args, begin, end, thread_scratch(3 * dim));
    });
  }

  void rms_norm(const void* x, const float* weight, void* out) const {
    RmsNormArgs args{x, dim, weight, out, dim, eps, dtype};
    parallel_for(count(), double(dim), threads,
                 [&](int64_t begin, int64_t end) { kernels.rms_norm(args, begin, end); });
  }

  // Dense rows `x` through a layer; residual and gate may be empty.
  void linear(const void* x, const Layer& layer, bool gelu, const Rows& residual, const Modulation& gate,
              void* out) const {
    LinearArgs args{};
    layer.fill(args);
    args.x = x, args.x_stride = args.inputs, args.gelu = gelu, args.residual = residual, args.gate = gate;
    args.out = out, args.rows = count(), args.dtype = dtype;
    args.tokens_per_slot = tokens, args.tokens_per_frame = tokens / frames;
    run_linear(kernels, args, threads);
  }
};

Modulation part(const Tensor& modulation, int64_t index, int64_t item_bytes) {
  char* data = modulation.data<char>() + index * modulation.stride(2) * item_bytes;
  return {data, modulation.stride(0), modulation.stride(1), modulation.dtype()};
}

int64_t item_size(DType dtype) { return dtype == DType::float32 ? 4 : 2; }

Rows3 rows_of(const Kernels& kernels, const Tensor& x, const Tensor& modulation, double eps, int threads) {
  int64_t tokens = x.size(1), frames = modulation.size(1);
  require(x.is_floating() && modulation.is({x.size(0), Tensor::kAny, 6, x.size(2)}));
  require(modulation.dtype() == x.dtype() || modulation.dtype() == DType::float32);
  require(tokens > 0 && frames > 0 && tokens % frames == 0);
  return {kernels, x.size(0), tokens, frames, x.size(2), float(eps), x.dtype(), threads};
}

}  // namespace

void Operations::block_projections(py::handle x_, py::handle modulation_, py::sequence weights, py::handle parts_,
                                   double eps, int threads) const {
  Tensor x = Tensor::input(x_, 3), modulation = Tensor::input(modulation_, 4), parts = Tensor::output(parts_, 4);
  Rows3 run = rows_of(*kernels_, x, modulation, eps, threads);
  require(is_like(parts, x, {4, run.slots, run.tokens, run.dim}) && parts.is_contiguous());
  Layer layers[] = {{weights, 0, run.dim, run.dim, run.dtype},
                    {weights, 2, run.dim, run.dim, run.dtype},
                    {weights, 4, run.dim, run.dim, run.dtype}};
  int64_t bytes = item_size(run.dtype);
  py::gil_scoped_release release;
  char* out = parts.data<char>();
  run.norm(rows(x), part(modulation, 0, bytes), part(modulation, 1, bytes), 1.0f, out);
  const void* normed = out;
  for (const Layer& layer : layers) run.linear(normed, layer, false, {}, {}, out += run.count() * run.dim * bytes);
}

void Operations::block_output(py::handle attended_, py::handle x_, py::handle modulation_, py::sequence weights,
                              py::handle keys_, py::handle values_, py::handle work_, py::handle out_, double eps,
                              int threads) const {
  Tensor attended = Tensor::contiguous(attended_, 4), x = Tensor::input(x_, 3);
  Tensor modulation = Tensor::input(modulation_, 4), out = Tensor::output(out_, 3);
  Rows3 run = rows_of(*kernels_, x, modulation, eps, threads);
  int64_t dim = run.dim, heads = attended.size(2), head_dim = attended.size(3);
  require(is_like(attended, x, {run.slots, run.tokens, heads, head_dim}) && heads * head_dim == dim);
  require(is_like(out, x, {run.slots, run.tokens, dim}) && out.is_contiguous());
  Tensor keys = Tensor::input(keys_, 4), values = Tensor::input(values_, 4);
  int64_t groups = keys.size(0), length = keys.size(1);
  require(is_like(keys, x, {groups, length, heads, head_dim}) && is_like(values, x, {groups, length, heads, head_dim}));
  require(groups > 0 && length > 0 && run.count() % groups == 0 && weights.size() == 13);
  Tensor hidden = Tensor::contiguous(py::object(weights[9]), 2);
  int64_t ffn = hidden.size(0);
  Layer project{weights, 0, dim, dim, run.dtype}, query{weights, 4, dim, dim, run.dtype};
  Layer cross{weights, 7, dim, dim, run.dtype}, up{weights, 9, ffn, dim, run.dtype};
  Layer down{weights, 11, dim, ffn, run.dtype};
  Tensor weight = Tensor::contiguous(py::object(weights[2]), 1), bias = Tensor::contiguous(py::object(weights[3]), 1);
  Tensor query_norm = Tensor::float32(py::object(weights[6]), 1, run.dtype);
  require(is_like(weight, x, {dim}) && is_like(bias, x, {dim}) && query_norm.is({dim}));
  Tensor work = Tensor::output(work_, 1);
  int64_t rows_size = run.count() * dim, bytes = item_size(run.dtype);
  require(is_like(work, x, {3 * rows_size + run.count() * ffn}));

  std::vector<int32_t> table(static_cast<size_t>(groups)), lengths(table.size(), static_cast<int32_t>(length));
  for (int32_t group = 0; group < groups; ++group) table[static_cast<size_t>(group)] = group;
  char* first = work.data<char>();
  char* second = first + rows_size * bytes;
  char* sum = second + rows_size * bytes;
  char* widened = sum + rows_size * bytes;
  int64_t queries = run.count() / groups;
  py::gil_scoped_release release;
  run.linear(attended.data(), project, false, rows(x), part(modulation, 2, bytes), sum);
  run.norm(run.dense(sum), {bias.data(), 0, 0, run.dtype}, {weight.data(), 0, 0, run.dtype}, 0.0f, first);
  run.linear(first, query, false, {}, {}, second);
  run.rms_norm(second, query_norm.data<const float>(), first);
  PagedAttentionArgs args{first, queries * dim, dim, head_dim, pages(keys), pages(values), table.data(),
                          lengths.data(), second, nullptr, queries, 0, 1, heads, head_dim,
                          float(std::pow(double(head_dim), -0.5)), run.dtype};
  run_attention(*kernels_, args, groups, groups * length, threads);
  run.linear(second, cross, false, run.dense(sum), {}, first);
  run.norm(run.dense(first), part(modulation, 3, bytes), part(modulation, 4, bytes), 1.0f, second);
  run.linear(second, up, true, {}, {}, widened);
  run.linear(widened, down, false, run.dense(first), part(modulation, 5, bytes), out.data());
}

}  // namespace wavecore
