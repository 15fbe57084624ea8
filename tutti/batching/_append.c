/* Fast path of Producer.send in C: appends a record to the open batch without the interpreter. appender.py and the first lines of
 * Producer.send implement the same path in Python. This module matters to producers of very many small records.
 *
 * Rules
 * - Between the first and the last change of a column, this code runs no Python code, does not block, and keeps the GIL. No other
 *   thread and no signal handler can therefore see a partial record.
 * - A call that may run other code (an allocation can start the garbage collector) comes first; state is checked again after it.
 * - Every unexpected argument goes to the slow path, which validates it and raises the error.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <time.h>

#ifdef Py_GIL_DISABLED
#error "this module depends on the GIL; without the GIL, appender.py does its work"
#endif

#define FORM 3                   /* version of the interface to appender.py, which ignores other versions */
#define RECORD_OVERHEAD_BYTES 21 /* as in encoder.py */

static PyObject *str_appenders, *str_key, *str_on_delivery, *str_free_bytes, *str_keys, *str_callbacks, *str_values, *str_times,
    *str_discard_partial;

/* ---- Appender: appends records to one batch until the batch is full or the appender is closed */

typedef struct {
    PyObject_HEAD
    PyObject *receipt;   /* the receipt type */
    PyObject *batch;
    PyObject *values, *times; /* lists of the batch */
    PyObject *keys;      /* list of the batch; NULL while no record has a key */
    PyObject *callbacks; /* list of the batch; NULL while no record has a callback */
    Py_ssize_t free_bytes; /* of the batch */
    int closed;
    int free_bytes_stored; /* `free_bytes` was stored in the batch: once, as the batch may change after that */
    vectorcallfunc vectorcall;
} Appender;

static PyTypeObject AppenderType;

static PyObject *
list_of(PyObject *batch, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(batch, name);
    if (found != NULL && found != Py_None && !PyList_CheckExact(found)) {
        PyErr_Format(PyExc_TypeError, "%U of a batch must be a list, not %.100s", name, Py_TYPE(found)->tp_name);
        Py_CLEAR(found);
    }
    return found;
}

/* Create a list of the batch with the first record that needs it; earlier records get `None`. If the appender was closed during the
 * allocation, create no list, because the thread that closed it has exclusive access and may have created one. */
static int
begin_list(Appender *self, PyObject **slot, PyObject *name, int filled)
{
    while (*slot == NULL) {
        Py_ssize_t count = filled ? PyList_GET_SIZE(self->values) : 0;
        PyObject *made = PyList_New(count); /* may run other code */
        if (made == NULL)
            return -1;
        for (Py_ssize_t at = 0; at < count; at++) {
            Py_INCREF(Py_None);
            PyList_SET_ITEM(made, at, Py_None);
        }
        if (self->closed) {
            Py_DECREF(made);
            return 0;
        }
        if (*slot != NULL || (filled && count != PyList_GET_SIZE(self->values))) {
            Py_DECREF(made);
            continue;
        }
        if (PyObject_SetAttr(self->batch, name, made) < 0) {
            Py_DECREF(made);
            return -1;
        }
        *slot = made;
    }
    return 0;
}

/* After an error within a record (no memory), remove the partial record. */
static void
discard_partial(Appender *self)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    self->closed = 1;
    Py_ssize_t entries = self->callbacks == NULL ? 0 : PyList_GET_SIZE(self->callbacks);
    if (entries % 2 && PyList_SetSlice(self->callbacks, entries - 1, entries, NULL) < 0) /* a receipt without its callback */
        PyErr_Clear();
    PyObject *done = PyObject_CallMethodNoArgs(self->batch, str_discard_partial);
    if (done == NULL)
        PyErr_Clear();
    Py_XDECREF(done);
    PyErr_Restore(type, value, trace);
}

static int
is_plain_function(PyObject *function)
{
    return PyFunction_Check(function)
        && !(((PyCodeObject *)PyFunction_GET_CODE(function))->co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR));
}

/* True if a callback is certainly not a coroutine function. The slow path checks all other callbacks. May run other code. */
static int
is_plain(PyObject *callback)
{
    if (PyMethod_Check(callback))
        callback = PyMethod_GET_FUNCTION(callback);
    if (PyFunction_Check(callback) || PyCFunction_Check(callback))
        return PyCFunction_Check(callback) || is_plain_function(callback);
    PyObject *call = PyObject_GetAttrString((PyObject *)Py_TYPE(callback), "__call__");
    if (call == NULL)
        PyErr_Clear();
    int plain = call != NULL && is_plain_function(call);
    Py_XDECREF(call);
    return plain;
}

/* Append a record and return its receipt; NULL without an exception if the record needs the slow path. */
static PyObject *
append_record(Appender *self, PyObject *value, PyObject *key, PyObject *on_delivery)
{
    if (!PyBytes_CheckExact(value) || (key != Py_None && !PyBytes_CheckExact(key)))
        return NULL;
    if (on_delivery != Py_None && !is_plain(on_delivery))
        return NULL;
    Py_ssize_t size = PyBytes_GET_SIZE(value) + RECORD_OVERHEAD_BYTES + (key == Py_None ? 0 : PyBytes_GET_SIZE(key));
    if (!self->closed && size <= self->free_bytes
        && ((on_delivery != Py_None && begin_list(self, &self->callbacks, str_callbacks, 0) < 0)
            || (key != Py_None && begin_list(self, &self->keys, str_keys, 1) < 0)))
        return NULL;
    if (self->closed || size > self->free_bytes) { /* checked again, as begin_list may run other code */
        self->closed = 1; /* like a finished generator */
        return NULL;
    }
    /* From here on no other code runs. The garbage collector cannot start, as it tracks none of the new objects. */
    Py_ssize_t index = PyList_GET_SIZE(self->values);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    PyObject *time = PyFloat_FromDouble((double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    PyObject *number = PyLong_FromSsize_t(index);
    PyObject *receipt = NULL;
    if (time != NULL && number != NULL) {
        PyObject *args[] = {self->batch, number};
        receipt = PyObject_Vectorcall(self->receipt, args, 2, NULL);
    }
    if (receipt != NULL) {
        self->free_bytes -= size;
        if (PyList_Append(self->values, value) < 0 || (self->keys != NULL && PyList_Append(self->keys, key) < 0)
            || (on_delivery != Py_None
                && (PyList_Append(self->callbacks, receipt) < 0 || PyList_Append(self->callbacks, on_delivery) < 0))
            || PyList_Append(self->times, time) < 0) {
            discard_partial(self);
            Py_CLEAR(receipt);
        }
    }
    Py_XDECREF(time);
    Py_XDECREF(number);
    return receipt;
}

/* appender(item), like `send` of the generator in appender.py: the item is a value, or (value, key, on_delivery). */
static PyObject *
appender_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Appender *self = (Appender *)callable;
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames)))
        return PyErr_Format(PyExc_TypeError, "an appender takes one item");
    PyObject *item = args[0], *receipt;
    if (PyTuple_CheckExact(item) && PyTuple_GET_SIZE(item) == 3)
        receipt = append_record(self, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1), PyTuple_GET_ITEM(item, 2));
    else
        receipt = append_record(self, item, Py_None, Py_None);
    if (receipt == NULL && !PyErr_Occurred()) {
        if (self->closed) {
            PyErr_SetNone(PyExc_StopIteration);
            return NULL;
        }
        Py_RETURN_NONE;
    }
    return receipt;
}

static PyObject *
appender_close(Appender *self, PyObject *Py_UNUSED(ignored))
{
    self->closed = 1;
    if (self->free_bytes_stored || self->batch == NULL)
        Py_RETURN_NONE;
    PyObject *free_bytes = PyLong_FromSsize_t(self->free_bytes);
    if (free_bytes == NULL || PyObject_SetAttr(self->batch, str_free_bytes, free_bytes) < 0) {
        Py_XDECREF(free_bytes);
        return NULL;
    }
    Py_DECREF(free_bytes);
    self->free_bytes_stored = 1;
    Py_RETURN_NONE;
}

static PyObject *
appender_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *batch, *receipt;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs))
        return PyErr_Format(PyExc_TypeError, "an appender has no keyword arguments");
    if (!PyArg_ParseTuple(args, "OO:Appender", &batch, &receipt))
        return NULL;
    Appender *self = (Appender *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    Py_INCREF(batch);
    self->batch = batch;
    Py_INCREF(receipt);
    self->receipt = receipt;
    self->vectorcall = appender_vectorcall;
    PyObject *free_bytes = PyObject_GetAttr(batch, str_free_bytes);
    if (free_bytes == NULL)
        goto failed;
    self->free_bytes = PyLong_AsSsize_t(free_bytes);
    Py_DECREF(free_bytes);
    if ((self->free_bytes == -1 && PyErr_Occurred()) || (self->values = list_of(batch, str_values)) == NULL
        || (self->times = list_of(batch, str_times)) == NULL || (self->keys = list_of(batch, str_keys)) == NULL
        || (self->callbacks = list_of(batch, str_callbacks)) == NULL)
        goto failed;
    if (self->values == Py_None || self->times == Py_None) {
        PyErr_SetString(PyExc_TypeError, "an open batch must have lists of values and times");
        goto failed;
    }
    if (self->keys == Py_None)
        Py_CLEAR(self->keys);
    if (self->callbacks == Py_None)
        Py_CLEAR(self->callbacks);
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static int
appender_traverse(Appender *self, visitproc visit, void *arg)
{
    Py_VISIT(self->receipt);
    Py_VISIT(self->batch);
    Py_VISIT(self->values);
    Py_VISIT(self->times);
    Py_VISIT(self->keys);
    Py_VISIT(self->callbacks);
    return 0;
}

static int
appender_clear(Appender *self)
{
    self->closed = 1;
    self->free_bytes = -1;
    Py_CLEAR(self->receipt);
    Py_CLEAR(self->batch);
    Py_CLEAR(self->values);
    Py_CLEAR(self->times);
    Py_CLEAR(self->keys);
    Py_CLEAR(self->callbacks);
    return 0;
}

static void
appender_dealloc(Appender *self)
{
    PyObject_GC_UnTrack(self);
    appender_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef appender_methods[] = {
    {"close", (PyCFunction)appender_close, METH_NOARGS, "Append nothing more, and store the free bytes in the batch."},
    {NULL},
};

static PyTypeObject AppenderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tutti.batching._append.Appender",
    .tp_doc = "Appender(batch, receipt_type): called like `send` of the generator in appender.py.",
    .tp_basicsize = sizeof(Appender),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Appender, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = appender_new,
    .tp_traverse = (traverseproc)appender_traverse,
    .tp_clear = (inquiry)appender_clear,
    .tp_dealloc = (destructor)appender_dealloc,
    .tp_methods = appender_methods,
};

/* ---- Send: a method `send(topic, value, key, ..., on_delivery)`; calls the Python function for records that need the slow path */

typedef struct {
    PyObject_HEAD
    PyObject *function;
    PyObject *attributes;
    vectorcallfunc vectorcall;
} Send;

static int
is_named(PyObject *name, PyObject *wanted)
{
    return name == wanted || PyUnicode_Compare(name, wanted) == 0;
}

static PyObject *
send_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Send *self = (Send *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf), named = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    PyObject *key = Py_None, *on_delivery = Py_None;
    if ((count == 3 || count == 4) && named <= 2 && PyUnicode_CheckExact(args[1])) {
        int known = 1;
        if (count == 4)
            key = args[3];
        for (Py_ssize_t at = 0; at < named && known; at++) {
            PyObject *name = PyTuple_GET_ITEM(kwnames, at);
            if (is_named(name, str_on_delivery))
                on_delivery = args[count + at];
            else if (count == 3 && is_named(name, str_key))
                key = args[count + at];
            else
                known = 0;
        }
        PyObject *appenders = known ? PyObject_GetAttr(args[0], str_appenders) : NULL;
        if (appenders == NULL) {
            if (known && !PyErr_ExceptionMatches(PyExc_AttributeError))
                return NULL;
            PyErr_Clear();
        } else {
            PyObject *receipt = NULL;
            if (PyDict_CheckExact(appenders)) {
                PyObject *appender = PyDict_GetItemWithError(appenders, args[1]);
                if (appender != NULL && Py_TYPE(appender) == &AppenderType) {
                    Py_INCREF(appender);
                    receipt = append_record((Appender *)appender, args[2], key, on_delivery);
                    Py_DECREF(appender);
                }
            }
            Py_DECREF(appenders);
            if (receipt != NULL || PyErr_Occurred())
                return receipt;
        }
    }
    return PyObject_Vectorcall(self->function, args, nargsf, kwnames);
}

static PyObject *
send_get(PyObject *self, PyObject *instance, PyObject *Py_UNUSED(type))
{
    if (instance == NULL || instance == Py_None) {
        Py_INCREF(self);
        return self;
    }
    return PyMethod_New(self, instance);
}

static PyObject *
send_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *function;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs))
        return PyErr_Format(PyExc_TypeError, "Send has no keyword arguments");
    if (!PyArg_ParseTuple(args, "O:Send", &function))
        return NULL;
    Send *self = (Send *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    Py_INCREF(function);
    self->function = function;
    self->vectorcall = send_vectorcall;
    return (PyObject *)self;
}

static int
send_traverse(Send *self, visitproc visit, void *arg)
{
    Py_VISIT(self->function);
    Py_VISIT(self->attributes);
    return 0;
}

static int
send_clear(Send *self)
{
    Py_CLEAR(self->function);
    Py_CLEAR(self->attributes);
    return 0;
}

static void
send_dealloc(Send *self)
{
    PyObject_GC_UnTrack(self);
    send_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyGetSetDef send_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyTypeObject SendType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tutti.batching._append.Send",
    .tp_basicsize = sizeof(Send),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Send, vectorcall),
    .tp_dictoffset = offsetof(Send, attributes),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = send_get,
    .tp_new = send_new,
    .tp_traverse = (traverseproc)send_traverse,
    .tp_clear = (inquiry)send_clear,
    .tp_dealloc = (destructor)send_dealloc,
    .tp_getset = send_attributes,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tutti.batching._append", "Fast path of Producer.send.", -1};

PyMODINIT_FUNC
PyInit__append(void)
{
    static const struct { PyObject **slot; const char *text; } names[] = {
        {&str_appenders, "_appenders"}, {&str_key, "key"}, {&str_on_delivery, "on_delivery"}, {&str_free_bytes, "free_bytes"},
        {&str_keys, "keys"}, {&str_callbacks, "callbacks"}, {&str_values, "values"}, {&str_times, "times"},
        {&str_discard_partial, "discard_partial"},
    };
    for (size_t at = 0; at < sizeof names / sizeof *names; at++)
        if (*names[at].slot == NULL && (*names[at].slot = PyUnicode_InternFromString(names[at].text)) == NULL)
            return NULL;
    if (PyType_Ready(&AppenderType) < 0 || PyType_Ready(&SendType) < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made == NULL || PyModule_AddType(made, &AppenderType) < 0 || PyModule_AddType(made, &SendType) < 0
        || PyModule_AddIntConstant(made, "FORM", FORM) < 0
        || PyModule_AddIntConstant(made, "RECORD_OVERHEAD_BYTES", RECORD_OVERHEAD_BYTES) < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
