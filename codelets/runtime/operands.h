#pragma once

#include <type_traits>

#include "codelets/runtime/batch.h"
#include "codelets/runtime/codelet.h"
#include "codelets/runtime/handle_ref.h"
#include "codelets/runtime/kv_access.h"
#include "codelets/weights/weight.h"

namespace sluice {

// A task's data are told once: as handles where it is submitted and as pointers where it runs. A
// codelet describes its tasks by a struct such as
//
//   struct Fc1Task {
//     using Args = Fc1Args;          // first member: TaskTag tag
//     using Handles = Fc1Handles;    // of HandleRef
//     using Operands = Fc1Operands;  // pointers, Weight, BatchView; first member: const Args* args
//     static constexpr const char* name = "fc1";
//     template <typename Data>
//     static void list(const Args& args, Data& data) {
//       data.reads(&Handles::x, &Operands::x);
//       data.reads_if(args.shape.gated_ffn, &Handles::gate, &Operands::gate, args.gate);
//       data.writes(&Handles::h, &Operands::h);
//     }
//     static void run(const CpuContext& cpu, const Operands& operands);
//     static void run(const cuda::Context& gpu, const Operands& operands);
//   };

/// A list that makes a task's accesses.
template <typename Handles>
class AccessMaker {
 public:
  AccessMaker(const Handles& handles, AccessList& accesses)
      : handles_(handles), accesses_(accesses) {}

  template <typename... Operand>
  void reads(HandleRef Handles::*handle, Operand&&... /*operand*/) {
    accesses_.add({(handles_.*handle)->get(), STARPU_R});
  }
  template <typename... Operand>
  void writes(HandleRef Handles::*handle, Operand&&... /*operand*/) {
    accesses_.add({(handles_.*handle)->get(), STARPU_W});
  }
  template <typename... Operand>
  void updates(HandleRef Handles::*handle, Operand&&... /*operand*/) {
    accesses_.add({(handles_.*handle)->get(), STARPU_RW});
  }
  template <typename... Operand>
  void reads_if(bool present, HandleRef Handles::*handle, Operand&&... operand) {
    if (present) reads(handle, operand...);
  }
  template <typename... Operand>
  void writes_if(bool present, HandleRef Handles::*handle, Operand&&... operand) {
    if (present) writes(handle, operand...);
  }
  template <typename... Operand>
  void updates_if(bool present, HandleRef Handles::*handle, Operand&&... operand) {
    if (present) updates(handle, operand...);
  }
  /// `count` pieces of data of one kind.
  template <typename Refs, typename... Operand>
  void reads_each(std::int32_t count, Refs Handles::*handles, Operand&&... /*operand*/) {
    for (std::int32_t i = 0; i < count; ++i) {
      const DataHandle& handle = (handles_.*handles)[static_cast<std::size_t>(i)];
      accesses_.add({handle.get(), STARPU_R});
    }
  }
  /// A layer's slab and new KV, as far as the sublayers use them.
  template <typename... Operand>
  void kv(const KvAccess& access, HandleRef Handles::*slab, HandleRef Handles::*new_kv,
          Operand&&... /*operands*/) {
    access.add_to(accesses_, handles_.*slab, handles_.*new_kv);
  }

 private:
  const Handles& handles_;
  AccessList& accesses_;
};

/// A list that finds a running task's buffers, in the same order.
template <typename Operands>
class BufferTaker {
 public:
  BufferTaker(Operands& operands, Buffers& buffers) : operands_(operands), buffers_(buffers) {}

  template <typename Handle, typename... Operand>
  void reads(Handle /*handle*/, Operand&&... operand) {
    take_if(true, operand...);
  }
  template <typename Handle, typename... Operand>
  void writes(Handle /*handle*/, Operand&&... operand) {
    take_if(true, operand...);
  }
  template <typename Handle, typename... Operand>
  void updates(Handle /*handle*/, Operand&&... operand) {
    take_if(true, operand...);
  }
  template <typename Handle, typename... Operand>
  void reads_if(bool present, Handle /*handle*/, Operand&&... operand) {
    take_if(present, operand...);
  }
  template <typename Handle, typename... Operand>
  void writes_if(bool present, Handle /*handle*/, Operand&&... operand) {
    take_if(present, operand...);
  }
  template <typename Handle, typename... Operand>
  void updates_if(bool present, Handle /*handle*/, Operand&&... operand) {
    take_if(present, operand...);
  }
  template <typename Handle, typename Array>
  void reads_each(std::int32_t count, Handle /*handles*/, Array Operands::*operands) {
    for (std::int32_t i = 0; i < count; ++i) {
      (operands_.*operands).at(static_cast<std::size_t>(i)) =
          buffers_.take<std::remove_const_t<std::remove_pointer_t<typename Array::value_type>>>();
    }
  }
  template <typename Handle, typename Slab, typename NewKv>
  void kv(const KvAccess& access, Handle /*slab*/, Handle /*new_kv*/, Slab Operands::*slab,
          NewKv Operands::*new_kv) {
    const KvBuffers taken = access.take_from(buffers_);
    operands_.*slab = taken.slab;
    operands_.*new_kv = taken.new_kv;
  }

 private:
  template <typename T>
  void take_if(bool present, T* Operands::*operand) {
    operands_.*operand = buffers_.take_if<std::remove_const_t<T>>(present);
  }
  void take_if(bool present, BatchView Operands::*batch) {
    operands_.*batch = BatchView(buffers_.take_if<void>(present));
  }
  void take_if(bool present, Weight Operands::*weight, const WeightType& type) {
    operands_.*weight = {type, buffers_.take_if<std::byte>(present)};
  }

  Operands& operands_;
  Buffers& buffers_;
};

/// A task's kernel for Codelet::with_all(): takes the buffers and calls Task::run().
template <typename Task>
struct RunTask {
  template <typename Context>
  void operator()(const Context& context, const typename Task::Args& args, Buffers buffers) const {
    typename Task::Operands operands{.args = &args};
    BufferTaker<typename Task::Operands> taker(operands, buffers);
    Task::list(args, taker);
    Task::run(context, operands);
  }
};

/// Submits to a codelet whose kernel takes the data that Task lists. Throws Error when StarPU
/// takes no such task.
template <typename Task>
void submit_to(const Codelet<typename Task::Args>& codelet, DType dtype,
               const typename Task::Args& args, const typename Task::Handles& handles,
               const WeightFormat& weights = {}) {
  AccessList accesses{};
  AccessMaker<typename Task::Handles> maker(handles, accesses);
  Task::list(args, maker);
  codelet.submit(dtype, args, accesses, weights);
}

/// The same to Task's own codelet, which has kernels for CPUs and GPUs.
template <typename Task>
void submit_task(DType dtype, const typename Task::Args& args,
                 const typename Task::Handles& handles, const WeightFormat& weights = {}) {
  static const auto codelet =
      Codelet<typename Task::Args>::template with_all<RunTask<Task>>(Task::name);
  submit_to<Task>(codelet, dtype, args, handles, weights);
}

}  // namespace sluice
