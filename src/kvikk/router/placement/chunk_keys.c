/* The keys of a prompt's content: the same as chunk_keys.py makes, in a fifth of the time.

   A key is XXH3 in 128 bits, without a seed, of the key before and of a chunk. This is that hash as
   its specification has it for inputs of more than 240 bytes, which these are:
   https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "numbers are read as they lie in memory"
#endif

enum { CHUNK_BYTES = 256, CHUNK_KEY_BYTES = 16, MOST_ROOT_BYTES = 64 };
enum { LANES = 8, STRIPE_BYTES = 64, STRIPES_PER_BLOCK = 16, SECRET_BYTES = 192 };

static const uint64_t PRIME32_1 = 0x9E3779B1, PRIME32_2 = 0x85EBCA77, PRIME32_3 = 0xC2B2AE3D;
static const uint64_t PRIME64_1 = 0x9E3779B185EBCA87, PRIME64_2 = 0xC2B2AE3D27D4EB4F,
                      PRIME64_3 = 0x165667B19E3779F9, PRIME64_4 = 0x85EBCA77C2B2AE63,
                      PRIME64_5 = 0x27D4EB2F165667C5, PRIME_MX1 = 0x165667919E3779F9;

static const uint8_t SECRET[SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint64_t number(const uint8_t *place) {
    uint64_t value;
    memcpy(&value, place, sizeof value);
    return value;
}

static inline uint64_t folded_product(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline void take_in(uint64_t lanes[LANES], const uint8_t *stripe, const uint8_t *secret) {
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t value = number(stripe + 8 * lane);
        uint64_t mixed = value ^ number(secret + 8 * lane);
        lanes[lane ^ 1] += value;
        lanes[lane] += (mixed & 0xFFFFFFFF) * (mixed >> 32);
    }
}

static inline uint64_t merged(const uint64_t lanes[LANES], const uint8_t *secret, uint64_t start) {
    uint64_t sum = start;
    for (int lane = 0; lane < LANES; lane += 2) {
        sum += folded_product(lanes[lane] ^ number(secret + 8 * lane),
                              lanes[lane + 1] ^ number(secret + 8 * lane + 8));
    }
    sum = (sum ^ sum >> 37) * PRIME_MX1;
    return sum ^ sum >> 32;
}

/* Of 241 to 1,024 bytes: one block, which needs no scrambling. */
static void hash(const uint8_t *input, size_t length, uint8_t key[CHUNK_KEY_BYTES]) {
    uint64_t lanes[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                             PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    size_t stripes = (length - 1) / STRIPE_BYTES;
    for (size_t stripe = 0; stripe < stripes; stripe++) {
        take_in(lanes, input + STRIPE_BYTES * stripe, SECRET + 8 * stripe);
    }
    take_in(lanes, input + length - STRIPE_BYTES, SECRET + SECRET_BYTES - STRIPE_BYTES - 7);
    uint64_t low = merged(lanes, SECRET + 11, length * PRIME64_1);
    uint64_t high = merged(lanes, SECRET + SECRET_BYTES - STRIPE_BYTES - 11, ~(length * PRIME64_2));
    low = __builtin_bswap64(low);
    high = __builtin_bswap64(high);
    memcpy(key, &high, 8);
    memcpy(key + 8, &low, 8);
}

/* A chain as far as it has come: a parent's key and what there is of the next chunk. */
struct chain {
    uint8_t input[MOST_ROOT_BYTES + CHUNK_BYTES];
    size_t parent_bytes, filled_bytes;
    uint8_t *key;
};

static void extend(struct chain *chain, const char *bytes, size_t count) {
    while (count > 0) {
        size_t room = CHUNK_BYTES - chain->filled_bytes, step = count < room ? count : room;
        memcpy(chain->input + chain->parent_bytes + chain->filled_bytes, bytes, step);
        chain->filled_bytes += step;
        bytes += step;
        count -= step;
        if (chain->filled_bytes == CHUNK_BYTES) {
            hash(chain->input, chain->parent_bytes + CHUNK_BYTES, chain->key);
            memcpy(chain->input, chain->key, CHUNK_KEY_BYTES);
            chain->parent_bytes = CHUNK_KEY_BYTES;
            chain->filled_bytes = 0;
            chain->key += CHUNK_KEY_BYTES;
        }
    }
}

/* A text's bytes, which live as long as it or ``*owner``; surrogates that stand alone pass. */
static const char *utf8(PyObject *text, Py_ssize_t *count, PyObject **owner) {
    *owner = NULL;
    const char *bytes = PyUnicode_AsUTF8AndSize(text, count);
    if (bytes == NULL && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        PyErr_Clear();
        *owner = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
        if (*owner != NULL) {
            *count = PyBytes_GET_SIZE(*owner);
            bytes = PyBytes_AS_STRING(*owner);
        }
    }
    return bytes;
}

static PyObject *chunk_keys(PyObject *module, PyObject *arguments) {
    const char *root;
    PyObject *parts, *owner, *keys = NULL, *rest = NULL;
    Py_ssize_t root_bytes, beginning, count, size = 0, stop = 0;
    if (!PyArg_ParseTuple(arguments, "y#O!n", &root, &root_bytes, &PyList_Type, &parts,
                          &beginning)) {
        return NULL;
    }
    if (root_bytes > MOST_ROOT_BYTES) {
        return PyErr_Format(PyExc_ValueError, "a root key has at most %d bytes", MOST_ROOT_BYTES);
    }
    for (Py_ssize_t part = 0; part < PyList_GET_SIZE(parts); part++) {
        if (utf8(PyList_GET_ITEM(parts, part), &count, &owner) == NULL) {
            return NULL;
        }
        Py_XDECREF(owner);
        size += count;
    }
    keys = PyBytes_FromStringAndSize(NULL, size / CHUNK_BYTES * CHUNK_KEY_BYTES);
    if (keys == NULL) {
        return NULL;
    }
    struct chain chain = {.parent_bytes = root_bytes, .key = (uint8_t *)PyBytes_AS_STRING(keys)};
    memcpy(chain.input, root, root_bytes);
    size = 0;
    for (Py_ssize_t part = 0; part <= PyList_GET_SIZE(parts); part++) {
        if (part == beginning) {
            stop = size;
            const char *begun = (char *)chain.input + chain.parent_bytes;
            rest = PyBytes_FromStringAndSize(begun, chain.filled_bytes);
            if (rest == NULL) {
                break;
            }
        }
        if (part < PyList_GET_SIZE(parts)) {
            const char *bytes = utf8(PyList_GET_ITEM(parts, part), &count, &owner);
            if (bytes == NULL) {
                break;
            }
            extend(&chain, bytes, count);
            Py_XDECREF(owner);
            size += count;
        }
    }
    if (PyErr_Occurred() || rest == NULL) {
        Py_DECREF(keys);
        Py_XDECREF(rest);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_IndexError, "there is no such part");
    }
    return Py_BuildValue("(NnnN)", keys, size, stop, rest);
}

static PyMethodDef methods[] = {
    {"chunk_keys", chunk_keys, METH_VARARGS, "See chunk_keys.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "chunk_keys", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_chunk_keys(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && (PyModule_AddIntMacro(module, CHUNK_BYTES) < 0 ||
                           PyModule_AddIntMacro(module, CHUNK_KEY_BYTES) < 0)) {
        Py_CLEAR(module);
    }
    return module;
}
