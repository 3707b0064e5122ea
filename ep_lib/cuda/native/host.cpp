// The most frequent steps of a call without Python in between: inspect a tensor, share its first rows, and launch a
// kernel.
//
// ep_lib/cuda/native_host.py loads this and documents the alternative without it. Unusual cases are left to the Python
// code, which raises the errors: this code raises none.
//
// A torch tensor is read through torch's DLPack exchange table (ATen/dlpack.h, DLPackExchangeAPI): about 50 ns, without
// interference of torch's modes, such as torch.set_default_device's.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <cstring>

namespace {

// ---- As in the standard at dmlc/dlpack ------------------------------------------------------------------------------
struct DLTensor {
    void* data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
};
struct ManagedTensor {  // DLManagedTensorVersioned
    uint32_t major, minor;
    void* context;
    void (*deleter)(ManagedTensor*);
    uint64_t flags;
    DLTensor tensor;
};
struct ExchangeTable {
    uint32_t major, minor;
    ExchangeTable* previous;
    void *allocate, *export_managed;
    int (*import_managed)(ManagedTensor* tensor, void** out);
    int (*look)(void* object, DLTensor* out);
    int (*stream)(int32_t device_type, int32_t device_id, void** out);
};
constexpr uint32_t kMajor = 1;
constexpr int kCpu = 1, kCuda = 2;
constexpr uint8_t kFloat = 2;  // DLDataTypeCode

// ---- Fields of ep_lib.memory.arrays.ArrayInfo -----------------------------------------------------------------------
enum Field { kAddress, kShape, kDtype, kStrides, kDevice, kKind, kReadonly, kOwner, kNbytes, kNumFields };

constexpr int kMostTypes = 4, kMostDtypes = 32, kMostDevices = 64, kMostDims = 16;
constexpr int kMostParams = 32, kMostArgumentBytes = 4096, kArgumentAlignment = 16, kMostKnown = 8;

struct Dtype {
    uint8_t code, bits;
    PyObject* dtype;
};

struct Tensors {
    PyTypeObject* info;
    const ExchangeTable* table;
    PyTypeObject* types[kMostTypes];
    int num_types;
    Dtype dtypes[kMostDtypes];
    int num_dtypes;
    PyObject *kind, *cpu, *devices[kMostDevices], *describe;
} tensors;

bool is_contiguous(const DLTensor& tensor) {
    if (!tensor.strides) return true;
    int64_t expected = 1;
    for (int d = tensor.ndim - 1; d >= 0; --d) {
        if (tensor.shape[d] != 1 && tensor.strides[d] != expected) return false;
        expected *= tensor.shape[d];
    }
    return true;
}

PyObject* device_name(const DLTensor& tensor) {
    if (tensor.device_type == kCpu) return tensors.cpu;
    if (tensor.device_type != kCuda || tensor.device_id < 0 || tensor.device_id >= kMostDevices) return nullptr;
    PyObject*& name = tensors.devices[tensor.device_id];
    if (!name) name = PyUnicode_FromFormat("cuda:%d", static_cast<int>(tensor.device_id));
    return name;
}

// A new ArrayInfo of a dense torch tensor that is not empty; null, without an exception, for all others.
PyObject* describe(PyObject* object) {
    bool known = false;
    for (int i = 0; i < tensors.num_types; ++i) known |= Py_TYPE(object) == tensors.types[i];
    DLTensor tensor;
    if (!known) return nullptr;
    if (tensors.table->look(object, &tensor) != 0) {
        PyErr_Clear();
        return nullptr;
    }
    PyObject* dtype = nullptr;
    for (int i = 0; i < tensors.num_dtypes && tensor.lanes == 1; ++i) {
        if (tensors.dtypes[i].code == tensor.code && tensors.dtypes[i].bits == tensor.bits)
            dtype = tensors.dtypes[i].dtype;
    }
    PyObject* const device = device_name(tensor);
    if (!dtype || !device || tensor.ndim > kMostDims || !is_contiguous(tensor)) return nullptr;
    int64_t nbytes = tensor.bits / 8;
    for (int d = 0; d < tensor.ndim; ++d) nbytes *= tensor.shape[d];
    // The owner of an empty tensor takes more work to find; a single float may be lazily negated (`z.conj().imag`).
    if (nbytes == 0 || (tensor.code == kFloat && nbytes == tensor.bits / 8)) return nullptr;
    PyObject* const shape = PyTuple_New(tensor.ndim);
    for (int d = 0; shape && d < tensor.ndim; ++d) PyTuple_SET_ITEM(shape, d, PyLong_FromLongLong(tensor.shape[d]));
    PyObject* const info = shape ? tensors.info->tp_alloc(tensors.info, kNumFields) : nullptr;
    if (!info) {
        Py_XDECREF(shape);
        PyErr_Clear();
        return nullptr;
    }
    const auto set = [&](Field field, PyObject* value) { PyTuple_SET_ITEM(info, field, value); };
    set(kAddress, PyLong_FromUnsignedLongLong(reinterpret_cast<uint64_t>(tensor.data) + tensor.byte_offset));
    set(kShape, shape);
    set(kDtype, Py_NewRef(dtype));
    set(kStrides, Py_NewRef(Py_None));
    set(kDevice, Py_NewRef(device));
    set(kKind, Py_NewRef(tensors.kind));
    set(kReadonly, Py_NewRef(Py_False));
    set(kOwner, Py_NewRef(object));
    set(kNbytes, PyLong_FromLongLong(nbytes));
    return info;
}

// A new ArrayInfo of any array, or the object itself if it is one; null, without an exception, for other objects.
PyObject* describe_any(PyObject* object) {
    if (Py_TYPE(object) == tensors.info) return Py_NewRef(object);
    PyObject* info = describe(object);
    if (!info && tensors.describe) info = PyObject_CallOneArg(tensors.describe, object);
    PyErr_Clear();
    return info;
}

PyObject* describe_or_none(PyObject*, PyObject* object) {
    PyObject* const info = describe(object);
    return info ? info : Py_NewRef(Py_None);
}

// The owner of a tensor's memory, which the tensor does not own itself.
struct Lent {
    ManagedTensor managed;
    PyObject* owner;
    int64_t shape[2], strides[2];
};

void give_back(ManagedTensor* managed) {  // in any thread that drops the tensor
    Lent* const lent = reinterpret_cast<Lent*>(managed);
    if (Py_IsInitialized()) {
        const PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF(lent->owner);
        PyGILState_Release(state);
    }
    delete lent;
}

// lend(address, rows, columns, dtype, device, owner): a torch tensor of that memory; it and its views keep `owner`
// alive. None if torch cannot. `device`: a CUDA device; -1: the CPU.
PyObject* lend(PyObject*, PyObject* args) {
    unsigned long long address;
    long long rows, columns;
    int device;
    PyObject *dtype, *owner;
    if (!PyArg_ParseTuple(args, "KLLOiO", &address, &rows, &columns, &dtype, &device, &owner)) return nullptr;
    const Dtype* found = nullptr;
    for (int i = 0; i < tensors.num_dtypes; ++i) {
        if (tensors.dtypes[i].dtype == dtype) found = &tensors.dtypes[i];
    }
    if (!found || !tensors.table || !tensors.table->import_managed) Py_RETURN_NONE;
    Lent* const lent = new Lent{};
    lent->owner = Py_NewRef(owner);
    lent->shape[0] = rows, lent->shape[1] = columns;
    lent->strides[0] = columns, lent->strides[1] = 1;
    ManagedTensor& managed = lent->managed;
    managed.major = kMajor;
    managed.deleter = give_back;
    DLTensor& tensor = managed.tensor;
    tensor.data = reinterpret_cast<void*>(address);
    tensor.device_type = device < 0 ? kCpu : kCuda;
    tensor.device_id = device < 0 ? 0 : device;
    tensor.ndim = 2;
    tensor.code = found->code, tensor.bits = found->bits, tensor.lanes = 1;
    tensor.shape = lent->shape, tensor.strides = lent->strides;
    void* made = nullptr;
    if (tensors.table->import_managed(&managed, &made) != 0) {  // torch owns it now, even if it does not free it
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return static_cast<PyObject*>(made);
}

// Reads a contiguous torch tensor; false, perhaps with an exception, for other objects.
bool look_at_dense(PyObject* object, DLTensor* tensor) {
    bool known = false;
    for (int i = 0; i < tensors.num_types; ++i) known |= Py_TYPE(object) == tensors.types[i];
    if (!known || tensors.table->look(object, tensor) != 0) return false;
    return tensor->ndim >= 1 && tensor->ndim <= kMostDims && is_contiguous(*tensor);
}

// use_arrays(ArrayInfo, describe): sets Python's class and function, for arrays other than torch's.
PyObject* use_arrays(PyObject*, PyObject* args) {
    PyObject *info, *describe;
    if (!PyArg_ParseTuple(args, "O!O", &PyType_Type, &info, &describe)) return nullptr;
    tensors.info = reinterpret_cast<PyTypeObject*>(Py_NewRef(info));
    tensors.describe = Py_NewRef(describe);
    Py_RETURN_NONE;
}

// use_tensors(table, types, dtypes): `dtypes` is a list of (code, bits, NumPy's dtype). Returns whether the table is
// usable.
PyObject* use_tensors(PyObject*, PyObject* args) {
    PyObject *capsule, *types, *dtypes;
    if (!PyArg_ParseTuple(args, "OO!O!", &capsule, &PyTuple_Type, &types, &PyList_Type, &dtypes)) return nullptr;
    auto* const table = static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    if (!table) return nullptr;
    if (table->major != kMajor || !table->look || PyTuple_GET_SIZE(types) > kMostTypes) Py_RETURN_FALSE;
    Tensors made = tensors;
    made.table = table;
    made.num_types = made.num_dtypes = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types); ++i) {
        made.types[made.num_types++] = reinterpret_cast<PyTypeObject*>(Py_NewRef(PyTuple_GET_ITEM(types, i)));
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(dtypes) && i < kMostDtypes; ++i) {
        Dtype& dtype = made.dtypes[made.num_dtypes++];
        if (!PyArg_ParseTuple(PyList_GET_ITEM(dtypes, i), "bbO", &dtype.code, &dtype.bits, &dtype.dtype))
            return nullptr;
        Py_INCREF(dtype.dtype);
    }
    made.kind = PyUnicode_InternFromString("torch");
    made.cpu = PyUnicode_InternFromString("cpu");
    tensors = made;
    Py_RETURN_TRUE;
}

// ---- Launches -------------------------------------------------------------------------------------------------------
using LaunchKernel = int (*)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned shared, void* stream, void** params, void** extra);
using GetContext = int (*)(void** context);

struct Param {
    char kind;  // 'p' pointer, 's' struct, 'i' int, 'u' uint, anything else: not supported here
    int size, offset;
    bool is_const, any_element;
    PyObject* known[kMostKnown];  // dtypes known to fit the pointer
    int num_known;
};

struct Launch {
    PyObject_HEAD LaunchKernel launch;
    GetContext get_context;
    void *function, *context;
    unsigned dims[6], shared;
    PyObject* device;
    int num_params;
    Param params[kMostParams];
};

// Whether an ArrayInfo is known to fit a pointer; `known` null: any element type and use.
bool fits(const Launch& self, PyObject* info, const Param* param) {
    PyObject* const device = PyTuple_GET_ITEM(info, kDevice);
    if (device != self.device && PyUnicode_Compare(device, self.device) != 0) return false;
    if (!param) return true;
    if (PyTuple_GET_ITEM(info, kStrides) != Py_None) return false;
    if (!param->is_const && PyTuple_GET_ITEM(info, kReadonly) != Py_False) return false;
    bool element_fits = param->any_element;
    for (int k = 0; k < param->num_known; ++k) element_fits |= param->known[k] == PyTuple_GET_ITEM(info, kDtype);
    return element_fits;
}

bool store_address(PyObject* number, char* to) {
    const unsigned long long address = PyLong_AsUnsignedLongLong(number);
    if (address == static_cast<unsigned long long>(-1) && PyErr_Occurred()) return false;
    const uint64_t word = address;
    std::memcpy(to, &word, sizeof word);
    return true;
}

bool store_array(const Launch& self, const Param& param, PyObject* arg, char* to) {
    PyObject* const info = describe_any(arg);
    const bool ok = info && fits(self, info, &param) && store_address(PyTuple_GET_ITEM(info, kAddress), to);
    Py_XDECREF(info);
    return ok;
}

// Stores the bytes of one argument. False: leave it to the Python code.
bool store(const Launch& self, const Param& param, PyObject* arg, char* to) {
    switch (param.kind) {
        case 'p':
            if (arg == Py_None) {
                std::memset(to, 0, sizeof(uint64_t));
                return true;
            }
            return PyLong_CheckExact(arg) ? store_address(arg, to) : store_array(self, param, arg, to);
        case 's':
            if (!PyBytes_CheckExact(arg) || PyBytes_GET_SIZE(arg) != param.size) return false;
            std::memcpy(to, PyBytes_AS_STRING(arg), param.size);
            return true;
        case 'i': {
            int overflow = 0;
            if (!PyLong_CheckExact(arg) || param.size > 8) return false;
            const int64_t value = PyLong_AsLongLongAndOverflow(arg, &overflow);
            const int unused = 64 - 8 * param.size;
            if (overflow || value != static_cast<int64_t>(static_cast<uint64_t>(value) << unused) >> unused)
                return false;
            std::memcpy(to, &value, param.size);
            return true;
        }
        default: return false;
    }
}

// launch(stream, args, uses): 0, or the driver's error; -1: not done, left to the Python code.
PyObject* launch_call(PyObject* object, PyObject* const* given, Py_ssize_t count) {
    const Launch& self = *reinterpret_cast<Launch*>(object);
    const auto not_done = [] {
        PyErr_Clear();
        return PyLong_FromLong(-1);
    };
    if (count != 3 || !PyTuple_CheckExact(given[1]) || PyTuple_GET_SIZE(given[1]) != self.num_params) return not_done();
    alignas(kArgumentAlignment) char buffer[kMostArgumentBytes];
    void* pointers[kMostParams];
    for (int i = 0; i < self.num_params; ++i) {
        char* const to = buffer + self.params[i].offset;
        if (!store(self, self.params[i], PyTuple_GET_ITEM(given[1], i), to)) return not_done();
        pointers[i] = to;
    }
    if (!PyTuple_CheckExact(given[2])) return not_done();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given[2]); ++i) {
        PyObject* const info = describe_any(PyTuple_GET_ITEM(given[2], i));
        const bool ok = info && fits(self, info, nullptr);
        Py_XDECREF(info);
        if (!ok) return not_done();
    }
    const unsigned long long stream = PyLong_AsUnsignedLongLong(given[0]);
    if (PyErr_Occurred()) return not_done();
    void* context = nullptr;
    if (self.get_context(&context) != 0 || context != self.context) return not_done();
    int status;
    const unsigned* const d = self.dims;
    Py_BEGIN_ALLOW_THREADS;  // it waits if the queue is full
    status = self.launch(self.function, d[0], d[1], d[2], d[3], d[4], d[5], self.shared,
                         reinterpret_cast<void*>(stream), pointers, nullptr);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(status);
}

PyObject* launch_learn(PyObject* object, PyObject* args) {
    Launch& self = *reinterpret_cast<Launch*>(object);
    int position;
    PyObject* dtype;
    if (!PyArg_ParseTuple(args, "iO", &position, &dtype)) return nullptr;
    if (position >= 0 && position < self.num_params && self.params[position].num_known < kMostKnown) {
        Param& param = self.params[position];
        for (int k = 0; k < param.num_known; ++k) {
            if (param.known[k] == dtype) Py_RETURN_NONE;
        }
        param.known[param.num_known++] = Py_NewRef(dtype);
    }
    Py_RETURN_NONE;
}

// Launch(cuLaunchKernel, cuCtxGetCurrent, context, function, (grid and block, 6), shared, device, params); a param is
// (kind, size, offset, is_const, any_element).
PyObject* launch_new(PyTypeObject* type, PyObject* args, PyObject*) {
    unsigned long long launch, get_context, context, function;
    PyObject *device, *params;
    unsigned d[6], shared;
    if (!PyArg_ParseTuple(args, "KKKK(IIIIII)IUO!", &launch, &get_context, &context, &function, &d[0], &d[1], &d[2],
                          &d[3], &d[4], &d[5], &shared, &device, &PyTuple_Type, &params)) {
        return nullptr;
    }
    if (PyTuple_GET_SIZE(params) > kMostParams) {
        PyErr_SetString(PyExc_ValueError, "too many parameters");
        return nullptr;
    }
    Launch* const self = reinterpret_cast<Launch*>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->launch = reinterpret_cast<LaunchKernel>(launch);
    self->get_context = reinterpret_cast<GetContext>(get_context);
    self->context = reinterpret_cast<void*>(context);
    self->function = reinterpret_cast<void*>(function);
    std::memcpy(self->dims, d, sizeof d);
    self->shared = shared;
    self->device = Py_NewRef(device);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(params); ++i) {
        Param& param = self->params[self->num_params++];
        int kind, is_const, any_element;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(params, i), "Ciipp", &kind, &param.size, &param.offset, &is_const,
                              &any_element)) {
            Py_DECREF(self);
            return nullptr;
        }
        if (param.offset + param.size > kMostArgumentBytes) {
            PyErr_SetString(PyExc_ValueError, "too many bytes of arguments");
            Py_DECREF(self);
            return nullptr;
        }
        param.kind = static_cast<char>(kind);
        param.is_const = is_const;
        param.any_element = any_element;
    }
    return reinterpret_cast<PyObject*>(self);
}

void launch_dealloc(PyObject* object) {
    Launch* const self = reinterpret_cast<Launch*>(object);
    for (int i = 0; i < self->num_params; ++i) {
        for (int k = 0; k < self->params[i].num_known; ++k) Py_DECREF(self->params[i].known[k]);
    }
    Py_XDECREF(self->device);
    Py_TYPE(object)->tp_free(object);
}

PyMethodDef launch_methods[] = {
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(launch_call)), METH_FASTCALL, nullptr},
    {"learn", launch_learn, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject launch_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// ---- An operation: arrays, and launches with kept argument blocks ---------------------------------------------------
constexpr int kMostSlots = 48, kMostSteps = 4, kMostPatches = 32;

struct Patch {  // the bytes at `offset` of a step's arguments: slots[slot] + add + slots[number] * factor
    int offset, size, slot, number;
    uint64_t add, factor;
};

struct Step {
    Launch* launch;
    int num_patches;
    Patch patches[kMostPatches];
    char* arguments;
    void* pointers[kMostParams];
};

struct Operation {
    PyObject_HEAD PyObject* makers;  // (function, dtype, ((slot or -1, length), ...)) of each array
    int num_given, num_slots, num_steps;
    Step steps[kMostSteps];
};

// `given`: (offset, size, slot, add, number or -1, factor).
bool add_patch(const Operation& self, Step* step, PyObject* given, int begin, int end) {
    Patch patch;
    unsigned long long add, factor;
    if (!PyTuple_Check(given) ||
        !PyArg_ParseTuple(given, "iiiKiK", &patch.offset, &patch.size, &patch.slot, &add, &patch.number, &factor))
        return false;
    const bool fits = patch.size == 4 || patch.size == 8;
    if (!fits || patch.offset < 0 || begin + patch.offset + patch.size > end) return false;
    if (patch.slot < 0 || patch.slot >= self.num_slots || patch.number >= self.num_slots) return false;
    if (step->num_patches == kMostPatches) return false;
    patch.offset += begin;
    patch.add = add, patch.factor = factor;
    step->patches[step->num_patches++] = patch;
    return true;
}

// One parameter: (bytes, patch, ...), with the parameter's size in bytes.
bool add_param(const Operation& self, Step* step, const Param& param, PyObject* given) {
    if (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) == 0) return false;
    PyObject* const bytes = PyTuple_GET_ITEM(given, 0);
    if (!PyBytes_CheckExact(bytes) || PyBytes_GET_SIZE(bytes) != param.size) return false;
    std::memcpy(step->arguments + param.offset, PyBytes_AS_STRING(bytes), param.size);
    for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(given); ++i) {
        if (!add_patch(self, step, PyTuple_GET_ITEM(given, i), param.offset, param.offset + param.size)) return false;
    }
    return true;
}

bool add_step(Operation* self, PyObject* given) {
    PyObject *launch, *params;
    if (self->num_steps == kMostSteps) return false;
    if (!PyArg_ParseTuple(given, "O!O!", &launch_type, &launch, &PyTuple_Type, &params)) return false;
    Step& step = self->steps[self->num_steps++];
    step.launch = reinterpret_cast<Launch*>(Py_NewRef(launch));
    int bytes = 1;
    for (int i = 0; i < step.launch->num_params; ++i) {
        const Param& param = step.launch->params[i];
        bytes = param.offset + param.size > bytes ? param.offset + param.size : bytes;
    }
    step.arguments = static_cast<char*>(PyMem_Calloc(1, bytes));
    if (!step.arguments || PyTuple_GET_SIZE(params) != step.launch->num_params) return false;
    for (int i = 0; i < step.launch->num_params; ++i) {
        const Param& param = step.launch->params[i];
        step.pointers[i] = step.arguments + param.offset;
        if (!add_param(*self, &step, param, PyTuple_GET_ITEM(params, i))) return false;
    }
    return true;
}

// Whether the object is a maker: (function, dtype, ((slot or -1, length), ...)).
bool is_maker(PyObject* maker, int num_given) {
    PyObject *function, *dtype, *shape;
    if (!PyTuple_CheckExact(maker) || !PyArg_ParseTuple(maker, "OOO!", &function, &dtype, &PyTuple_Type, &shape))
        return false;
    for (Py_ssize_t d = 0; d < PyTuple_GET_SIZE(shape); ++d) {
        int slot;
        long long length;
        PyObject* const dimension = PyTuple_GET_ITEM(shape, d);
        if (!PyTuple_CheckExact(dimension) || !PyArg_ParseTuple(dimension, "iL", &slot, &length)) return false;
        if (slot >= num_given) return false;
    }
    return PyTuple_GET_SIZE(shape) <= kMostDims;
}

// Operation(number of values, makers, steps): a step is (Launch, parameters). Slots are the given values, then the
// addresses of the made arrays. Raises ValueError for unsupported operations.
PyObject* operation_new(PyTypeObject* type, PyObject* args, PyObject*) {
    int num_given;
    PyObject *makers, *steps;
    if (!PyArg_ParseTuple(args, "iO!O!", &num_given, &PyTuple_Type, &makers, &PyTuple_Type, &steps)) return nullptr;
    Operation* const self = reinterpret_cast<Operation*>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->makers = Py_NewRef(makers);
    self->num_given = num_given;
    const Py_ssize_t slots = num_given + PyTuple_GET_SIZE(makers);
    bool ok = num_given >= 0 && slots <= kMostSlots && PyTuple_GET_SIZE(steps) > 0;
    self->num_slots = static_cast<int>(slots);
    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(makers); ++i) {
        ok = is_maker(PyTuple_GET_ITEM(makers, i), num_given);
    }
    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(steps); ++i) ok = add_step(self, PyTuple_GET_ITEM(steps, i));
    if (ok) return reinterpret_cast<PyObject*>(self);
    PyErr_Clear();
    Py_DECREF(self);
    PyErr_SetString(PyExc_ValueError, "not an operation that can run natively");
    return nullptr;
}

void operation_dealloc(PyObject* object) {
    Operation* const self = reinterpret_cast<Operation*>(object);
    for (int i = 0; i < self->num_steps; ++i) {
        Py_XDECREF(reinterpret_cast<PyObject*>(self->steps[i].launch));
        PyMem_Free(self->steps[i].arguments);
    }
    Py_XDECREF(self->makers);
    Py_TYPE(object)->tp_free(object);
}

// The word of a value: an ArrayInfo's address, 0 for None, or a number that is not negative.
bool value_of(PyObject* value, uint64_t* word) {
    *word = 0;
    if (value == Py_None) return true;
    if (Py_TYPE(value) == tensors.info) value = PyTuple_GET_ITEM(value, kAddress);
    return PyLong_CheckExact(value) && store_address(value, reinterpret_cast<char*>(word));
}

// The array of a maker, by torch's function of (sizes, strides, dtype). Null with torch's exception.
PyObject* make_array(PyObject* maker, const uint64_t* slots) {
    PyObject* const shape = PyTuple_GET_ITEM(maker, 2);
    const Py_ssize_t dims = PyTuple_GET_SIZE(shape);
    PyObject *const sizes = PyTuple_New(dims), *const strides = PyTuple_New(dims);
    PyObject* made = nullptr;
    if (sizes && strides) {
        int64_t step = 1;
        for (Py_ssize_t d = dims - 1; d >= 0; --d) {
            PyObject* const dimension = PyTuple_GET_ITEM(shape, d);
            const long slot = PyLong_AsLong(PyTuple_GET_ITEM(dimension, 0));
            const int64_t length =
                slot < 0 ? PyLong_AsLongLong(PyTuple_GET_ITEM(dimension, 1)) : static_cast<int64_t>(slots[slot]);
            PyTuple_SET_ITEM(sizes, d, PyLong_FromLongLong(length));
            PyTuple_SET_ITEM(strides, d, PyLong_FromLongLong(step));
            step *= length > 1 ? length : 1;
        }
        PyObject* const args[] = {sizes, strides, PyTuple_GET_ITEM(maker, 1)};
        made = PyObject_Vectorcall(PyTuple_GET_ITEM(maker, 0), args, 3, nullptr);
    }
    Py_XDECREF(sizes), Py_XDECREF(strides);
    return made;
}

// Writes the values into the steps' arguments. False if a number is too large for its field.
bool write_values(const Operation& self, const uint64_t* slots) {
    for (int i = 0; i < self.num_steps; ++i) {
        const Step& step = self.steps[i];
        for (int p = 0; p < step.num_patches; ++p) {
            const Patch& patch = step.patches[p];
            const uint64_t base = slots[patch.slot];
            const uint64_t word = base + patch.add + (patch.number < 0 ? 0 : slots[patch.number] * patch.factor);
            if (patch.size == 4 && word > INT32_MAX) return false;
            std::memcpy(step.arguments + patch.offset, &word, patch.size);
        }
    }
    return true;
}

// run(stream, values): a list of the arrays; (step, the driver's error); None: nothing was launched, because of an
// unusual case. Raises a maker's exceptions.
PyObject* operation_run(PyObject* object, PyObject* const* given, Py_ssize_t count) {
    const Operation& self = *reinterpret_cast<Operation*>(object);
    uint64_t slots[kMostSlots];
    const auto not_done = [] {
        PyErr_Clear();
        return Py_NewRef(Py_None);
    };
    if (count != 2 || !PyTuple_CheckExact(given[1]) || PyTuple_GET_SIZE(given[1]) != self.num_given) return not_done();
    for (int i = 0; i < self.num_given; ++i) {
        if (!value_of(PyTuple_GET_ITEM(given[1], i), &slots[i])) return not_done();
    }
    const unsigned long long stream = PyLong_AsUnsignedLongLong(given[0]);
    void* context = nullptr;
    if (PyErr_Occurred() || self.steps[0].launch->get_context(&context) != 0 ||
        context != self.steps[0].launch->context) {
        return not_done();
    }
    const Py_ssize_t arrays = PyTuple_GET_SIZE(self.makers);
    PyObject* const made = PyList_New(arrays);
    if (!made) return nullptr;
    for (Py_ssize_t i = 0; i < arrays; ++i) {
        PyObject* const array = make_array(PyTuple_GET_ITEM(self.makers, i), slots);
        DLTensor tensor;
        if (!array) {
            Py_DECREF(made);
            return nullptr;
        }
        PyList_SET_ITEM(made, i, array);
        if (!look_at_dense(array, &tensor)) {
            Py_DECREF(made);
            return not_done();
        }
        slots[self.num_given + i] = reinterpret_cast<uint64_t>(tensor.data) + tensor.byte_offset;
    }
    if (!write_values(self, slots)) {
        Py_DECREF(made);
        return not_done();
    }
    for (int i = 0; i < self.num_steps; ++i) {
        const Step& step = self.steps[i];
        int status;
        const unsigned* const d = step.launch->dims;
        void** const pointers = const_cast<void**>(step.pointers);
        Py_BEGIN_ALLOW_THREADS;  // it waits if the queue is full
        status = step.launch->launch(step.launch->function, d[0], d[1], d[2], d[3], d[4], d[5], step.launch->shared,
                                     reinterpret_cast<void*>(stream), pointers, nullptr);
        Py_END_ALLOW_THREADS;
        if (status != 0) {
            Py_DECREF(made);
            return Py_BuildValue("(ii)", i, status);
        }
    }
    return made;
}

PyMethodDef operation_methods[] = {
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(operation_run)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject operation_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyMethodDef functions[] = {{"describe", describe_or_none, METH_O, nullptr},
                           {"lend", lend, METH_VARARGS, nullptr},
                           {"use_arrays", use_arrays, METH_VARARGS, nullptr},
                           {"use_tensors", use_tensors, METH_VARARGS, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "ep_host", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_ep_host() {
    launch_type.tp_name = "ep_host.Launch";
    launch_type.tp_basicsize = sizeof(Launch);
    launch_type.tp_flags = Py_TPFLAGS_DEFAULT;
    launch_type.tp_new = launch_new;
    launch_type.tp_dealloc = launch_dealloc;
    launch_type.tp_methods = launch_methods;
    if (PyType_Ready(&launch_type) != 0) return nullptr;
    operation_type.tp_name = "ep_host.Operation";
    operation_type.tp_basicsize = sizeof(Operation);
    operation_type.tp_flags = Py_TPFLAGS_DEFAULT;
    operation_type.tp_new = operation_new;
    operation_type.tp_dealloc = operation_dealloc;
    operation_type.tp_methods = operation_methods;
    if (PyType_Ready(&operation_type) != 0) return nullptr;
    PyObject* const made = PyModule_Create(&module);
    if (made && PyModule_AddObjectRef(made, "Launch", reinterpret_cast<PyObject*>(&launch_type)) != 0) return nullptr;
    if (made && PyModule_AddObjectRef(made, "Operation", reinterpret_cast<PyObject*>(&operation_type)) != 0)
        return nullptr;
    return made;
}
