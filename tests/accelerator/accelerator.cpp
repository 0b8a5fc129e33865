// A stand-in for an accelerator, for tests on machines that have none: a torch device (PrivateUse1) with memory of its
// own. The processor cannot read that memory by its addresses, and no operation takes tensors of both devices. Whatever
// is computed is computed on the CPU, so results are the CPU's.

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>

namespace {

using at::Tensor;
constexpr auto TYPE = c10::DeviceType::PrivateUse1;
constexpr uintptr_t APART = uintptr_t(1) << 50;  // no address of a program is as high: reading it ends the process

bool is_ours(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == TYPE; }

struct Memory final : c10::Allocator {
  static void release(void* place) { std::free(place); }
  c10::DataPtr allocate(size_t size) override {
    void* place = size ? std::aligned_alloc(64, (size + 63) / 64 * 64) : nullptr;
    void* seen = place ? reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(place) + APART) : nullptr;
    return {seen, place, &release, c10::Device(TYPE, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(reinterpret_cast<char*>(to) - APART, reinterpret_cast<const char*>(from) - APART, size);
  }
};
Memory memory;

// The same numbers as a CPU tensor, without a copy.
Tensor seen_by_cpu(const Tensor& tensor) {
  if (!is_ours(tensor)) return tensor;
  auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(c10::kCPU);
  if (!tensor.numel()) return at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type(), {}, {}, {}, {});
  auto* place = reinterpret_cast<char*>(tensor.data_ptr()) - APART;
  return at::from_blob(place, tensor.sizes(), tensor.strides(), [](void*) {}, options);
}

std::optional<Tensor> seen_by_cpu(const std::optional<Tensor>& tensor) {
  return tensor.has_value() && tensor->defined() ? std::optional<Tensor>(seen_by_cpu(*tensor)) : tensor;
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

Tensor empty(c10::SymIntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
             std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype),
                                   format);
}

Tensor from_cpu(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  Tensor made = at::detail::empty_strided_generic(tensor.sizes(), tensor.strides(), &memory,
                                                c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                tensor.scalar_type());
  seen_by_cpu(made).copy_(tensor);
  return made;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  seen_by_cpu(to).copy_(seen_by_cpu(from));
  return to;
}

const Tensor& resize(const Tensor& tensor, c10::SymIntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  auto size = C10_AS_INTARRAYREF_SLOW(sizes);
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  size_t bytes = (impl->storage_offset() + impl->numel()) * impl->itemsize();
  auto& storage = impl->unsafe_storage();
  if (bytes > storage.nbytes()) {
    auto grown = memory.allocate(bytes);
    if (storage.nbytes()) memory.copy_data(grown.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(grown));
    storage.set_nbytes(bytes);
  }
  if (format.has_value()) impl->empty_tensor_restride(*format);
  return tensor;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

Tensor& set_storage(Tensor& tensor, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                    c10::SymIntArrayRef stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset.expect_int());
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  return tensor;
}

c10::Scalar local_scalar(const Tensor& tensor) { return seen_by_cpu(tensor).item(); }

// What a device must do itself, since torch has no form of it that falls back.
Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                   int64_t groups) {
  return from_cpu(at::convolution(seen_by_cpu(input), seen_by_cpu(weight), seen_by_cpu(bias), stride, padding, dilation,
                                  transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& input,
                                                        const Tensor& weight, at::IntArrayRef stride,
                                                        at::IntArrayRef padding, at::IntArrayRef dilation,
                                                        bool transposed, at::IntArrayRef output_padding,
                                                        int64_t groups, std::array<bool, 3> mask) {
  std::vector<int64_t> biases{weight.size(transposed ? 1 : 0) * (transposed ? groups : 1)};
  auto [a, b, c] = at::convolution_backward(seen_by_cpu(gradient), seen_by_cpu(input), seen_by_cpu(weight),
                                            at::OptionalIntArrayRef(biases), stride, padding, dilation, transposed,
                                            output_padding, groups, mask);
  return {from_cpu(a), from_cpu(b), from_cpu(c)};
}

// Its schema does not say that the running statistics change, so a fallback would lose them.
std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& input, const std::optional<Tensor>& weight,
                                              const std::optional<Tensor>& bias, const std::optional<Tensor>& mean,
                                              const std::optional<Tensor>& variance, bool training, double momentum,
                                              double epsilon) {
  auto [a, b, c] = at::native_batch_norm(seen_by_cpu(input), seen_by_cpu(weight), seen_by_cpu(bias), seen_by_cpu(mean),
                                         seen_by_cpu(variance), training, momentum, epsilon);
  return {from_cpu(a), from_cpu(b), from_cpu(c)};
}

// A CPU tensor among ours is a mistake, as on any accelerator, unless it is a single number.
void check_one_device(const c10::OperatorHandle& op, const c10::IValue& value) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    TORCH_CHECK(!tensor.defined() || is_ours(tensor) || !tensor.dim(), op.schema().name(),
                ": expected all tensors to be on the accelerator, but found one on ", tensor.device());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& part : value.toListRef()) check_one_device(op, part);
  }
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  for (const auto& value : arguments) check_one_device(op, value);
  at::native::cpu_fallback(op, stack);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return TYPE; }
  c10::Device exchangeDevice(c10::Device) const override { return {TYPE, 0}; }
  c10::Device getDevice() const override { return {TYPE, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::Device getDeviceFromPtr(void*) const override { return {TYPE, 0}; }
};

const bool registered = [] {
  c10::SetAllocator(TYPE, &memory);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_batch_norm", &batch_norm);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }
