// What autograd of torch's CPU build lacks before it takes tensors that are on CUDA by their own word: an accelerator that is
// there, its devices (two), and their current streams.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <new>

namespace {
using namespace c10;

const Device kFirst(DeviceType::CUDA, 0);
bool present = false;

struct PretendedGuard final : impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() const override { return kFirst; }
  Device exchangeDevice(Device) const override { return kFirst; }
  DeviceIndex deviceCount() const noexcept override { return 2; }
  Stream getStream(Device device) const noexcept override { return Stream(Stream::DEFAULT, device); }
  Stream exchangeStream(Stream stream) const noexcept override { return Stream(Stream::DEFAULT, stream.device()); }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) const override {}  // nothing is behind
  void block(void*, const Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(CUDA, PretendedGuard);

struct PretendedHooks final : at::CUDAHooksInterface {
  bool hasCUDA() const override { return present; }
  bool isBuilt() const override { return present; }
  bool isAvailable() const override { return present; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
};
}  // namespace

// torch asks its registry for hooks once, while it is imported. These have no members, so they fit where those are.
extern "C" void show_gpu(bool shown) {
  static auto* hooks = new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) PretendedHooks;
  (void)hooks;
  present = shown;
}
