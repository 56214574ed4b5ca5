/* SPDX-License-Identifier: Apache-2.0 */
/* Reads into a device, on test doubles of libcuda and libcufile: every backend, every fallback, and
 * the result of each call that fails. */
#include "harness.h"

/* ---- opening a device ---- */

START_TEST(names)
{
    static const char *const bad[] = {"cuda",    "cuda:", "cuda:x", "cuda:1x",
                                      "cuda:-1", "cpu",   "",       "cuda: 1"};
    struct fstfs_device *again;

    begin("h200", 0);
    for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        ck_assert_int_eq(fstfs_device(fstfs, bad[i], &again), -EINVAL);
    ck_assert_int_eq(fstfs_device(fstfs, "cuda:0", &again), 0);
    ck_assert_ptr_eq(again, device);
    ck_assert_int_eq(fstfs_device(fstfs, "cuda:1", &again), 0);
    ck_assert_ptr_ne(again, device);
    ck_assert_int_eq(fstfs_device(fstfs, "cuda:2", &again), -ENODEV);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "cuda:2: the driver has 2 devices"));
    finish();
}
END_TEST

START_TEST(cuda_is_loaded_on_demand_only)
{
    doubles.double_cuda_reset("h200");
    open_model(0);
    fstfs_close(checkpoint);
    fstfs_free(fstfs);
    ck_assert_uint_eq(doubles.double_cuda_calls("cuInit"), 0);
}
END_TEST

START_TEST(no_device)
{
    static const char *const calls[] = {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute",
                                        "cuDevicePrimaryCtxRetain"};

    doubles.double_cuda_reset("none");
    open_model(0);
    ck_assert_int_eq(fstfs_device(fstfs, "cuda:0", &device), -ENODEV);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "cuInit: CUDA_ERROR_NO_DEVICE (100)"));
    found.no_library = "libcuda.so.1";
    ck_assert_int_eq(fstfs_device(fstfs, "cuda:0", &device), -ENODEV);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "the CUDA driver is not installed"));
    found.no_library = NULL;
    found.no_symbol = "cuMemAlloc_v2";
    ck_assert_int_eq(fstfs_device(fstfs, "cuda:0", &device), -ENODEV);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "the CUDA driver has no cuMemAlloc_v2"));
    found.no_symbol = NULL;
    doubles.double_cuda_reset("h200");
    for (unsigned i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        doubles.double_cuda_fail(calls[i], 1, INJECTED);
        ck_assert_int_eq(fstfs_device(fstfs, "cuda:0", &device), -EIO);
        ck_assert_ptr_nonnull(strstr(fstfs_error(), calls[i]));
    }
    ck_assert_int_eq(fstfs_device(fstfs, "cuda:0", &device), 0);
    finish();
}
END_TEST

/* ---- the ring ---- */

START_TEST(ring)
{
    static const char *const profiles[] = {"h200", "gh200", "hmm", "tegra"};

    for (unsigned i = 0; i < sizeof(profiles) / sizeof(*profiles); i++) {
        begin(profiles[i], 0);
        check_all(device_memory);
        ck_assert_str_eq(status("backend"), "ring");
        check_status("unified", i == 3 ? "page tables" : "memory of its own");
        check_status("cufile", i < 2 ? "cuFileDriverOpen: error 5001" : "no GPUDirect RDMA");
        check_all(managed_memory);
        finish();
    }
}
END_TEST

/* Each slot is used many times; the double detects one that is reused too early. */
START_TEST(small_ring)
{
    begin("h200", SMALL_BUDGET);
    for (int i = 0; i < 3; i++)
        check_all(device_memory);
    ck_assert_uint_gt(doubles.double_cuda_calls("cuEventRecord"), 20);
    ck_assert_str_eq(status("backend"), "ring");
    finish();
}
END_TEST

/* ---- the fallback to pageable memory ---- */

START_TEST(pageable)
{
    static const char *const calls[] = {"cuMemcpyHtoDAsync_v2", "cuEventRecord",
                                        "cuEventSynchronize",   "cuEventQuery",
                                        "cuStreamCreate",       "cuEventCreate"};

    for (unsigned i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        for (unsigned call = 1; call < 4; call += 2) {
            if (call > 1 && strstr(calls[i], "Create"))
                continue;
            begin("h200", SMALL_BUDGET);
            doubles.double_cuda_fail(calls[i], call, INJECTED);
            check_all(device_memory);
            ck_assert_str_eq(status("backend"), "pageable");
            check_status("ring", calls[i]);
            check_all(device_memory);
            finish();
        }
    }
}
END_TEST

START_TEST(no_registration)
{
    begin("h200", SMALL_BUDGET);
    doubles.double_cuda_fail("cuMemHostRegister_v2", 0, INJECTED);
    check_all(device_memory);
    ck_assert_str_eq(status("backend"), "ring");
    ck_assert_uint_eq(doubles.double_cuda_calls("cuMemHostAlloc"), 1);
    finish();
    begin("h200", SMALL_BUDGET);
    doubles.double_cuda_fail("cuMemHostRegister_v2", 0, INJECTED);
    doubles.double_cuda_fail("cuMemHostAlloc", 0, INJECTED);
    check_all(device_memory);
    ck_assert_str_eq(status("backend"), "pageable");
    check_status("ring", "cuMemHostRegister");
    ck_assert_uint_eq(doubles.double_cuda_calls("cuMemcpyHtoDAsync_v2"), 0);
    finish();
}
END_TEST

/* Only the last backend can fail a read. */
START_TEST(nothing_works)
{
    struct fstfs_request requests[TENSORS];

    begin("h200", 0);
    doubles.double_cuda_fail("cuMemcpyHtoDAsync_v2", 1, INJECTED);
    doubles.double_cuda_fail("cuMemcpyHtoD_v2", 2, INJECTED);
    ck_assert_int_eq(read_all(device_memory, requests), -EIO);
    ck_assert_str_eq(fstfs_error(), "cuda:0: cuMemcpyHtoD_v2: an error without a name (999)");
    for (unsigned i = 0; i < TENSORS; i++)
        free_memory(requests[i].to);
    doubles.double_cuda_fail("cuCtxPushCurrent_v2", 1, INJECTED);
    ck_assert_int_eq(
        fstfs_read(checkpoint, requests, 1, &(struct fstfs_read_options){.device = device}), -EIO);
    finish();
}
END_TEST

/* ---- cuFile ---- */

/* An H200 with everything that cuFile needs. */
static void
begin_direct(uint64_t memory)
{
    static const struct double_cufile loaded = {.nvfs = true, .compatible = true};

    begin("h200", memory);
    doubles.double_cufile_reset(&loaded);
    found.fs_type = EXT4_SUPER_MAGIC;
}

static atomic_bool answered, answered_in_time;

static void
wait_for_driver(void)
{
    while (doubles.double_cufile_calls("cuFileDriverOpen") == 0)
        usleep(1000);
}

static void *
ask_status(void *arg)
{
    struct fstfs_device *again = NULL;
    char text[8192];

    wait_for_driver();
    if (fstfs_status(fstfs, text, sizeof(text)) > 0 && strstr(text, "\"device\":\"cuda:0\"") &&
        fstfs_device(fstfs, "cuda:0", &again) == 0 && again == device)
        atomic_store(&answered, true);
    return arg;
}

/* Lets the driver open when the other thread has its answer, or after 10 seconds. */
static void *
release_driver(void *arg)
{
    wait_for_driver();
    for (int i = 0; i < 10000 && !atomic_load(&answered); i++)
        usleep(1000);
    atomic_store(&answered_in_time, atomic_load(&answered));
    doubles.double_cufile_hold(false);
    return arg;
}

/* fstfs_status() does not wait while another thread opens cuFile's driver, which may take seconds.
 */
START_TEST(status_while_the_driver_loads)
{
    pthread_t asker, releaser;

    begin_direct(0);
    doubles.double_cufile_hold(true);
    ck_assert_int_eq(pthread_create(&asker, NULL, ask_status, NULL), 0);
    ck_assert_int_eq(pthread_create(&releaser, NULL, release_driver, NULL), 0);
    check_all(device_memory);
    pthread_join(asker, NULL);
    pthread_join(releaser, NULL);
    ck_assert(atomic_load(&answered_in_time));
    finish();
}
END_TEST

START_TEST(direct)
{
    static const struct double_cufile peer = {.p2p = true}, strict = {.nvfs = true};

    if (!reads_directly())
        return;
    begin_direct(SMALL_BUDGET);
    for (int i = 0; i < 3; i++)
        check_all(device_memory);
    ck_assert_str_eq(status("backend"), "cufile");
    ck_assert_uint_gt(status_number(true, "device_memory"), 0);
    ck_assert_uint_ge(status_number(false, "storage_bytes"), status_number(false, "bytes"));
    check_status("unified", "memory of its own");
    ck_assert_uint_gt(doubles.double_cufile_calls("cuFileRead"), 20);
    ck_assert_uint_eq(doubles.double_cufile_calls("cuFileHandleRegister"), 1);
    ck_assert_uint_eq(doubles.double_cuda_calls("cuMemcpyHtoDAsync_v2"), 0);
    finish();
    begin_direct(0);
    doubles.double_cufile_reset(&peer);
    check_all(device_memory);
    ck_assert_str_eq(status("backend"), "cufile");
    finish();
    /* Before cuFile 1.14, only its configuration can turn the compatibility mode off. */
    begin_direct(0);
    doubles.double_cufile_reset(&strict);
    found.no_symbol = "cuFileSetParameterBool";
    check_all(device_memory);
    ck_assert_str_eq(status("backend"), "cufile");
    finish();
}
END_TEST

static void
check_not_direct(const char *why)
{
    check_all(device_memory);
    ck_assert_str_eq(status("backend"), "ring");
    check_status("cufile", why);
    /* The failure is remembered; cuFile is not called again. */
    unsigned opened = doubles.double_cufile_calls("cuFileDriverOpen"),
             read = doubles.double_cufile_calls("cuFileRead");
    check_all(device_memory);
    ck_assert_uint_eq(doubles.double_cufile_calls("cuFileDriverOpen"), opened);
    ck_assert_uint_eq(doubles.double_cufile_calls("cuFileRead"), read);
    finish();
}

START_TEST(not_direct)
{
    begin_direct(0);
    found.no_udev = true;
    check_not_direct("there is no /run/udev");
    begin_direct(0);
    found.wsl = true;
    check_not_direct("WSL");
    begin_direct(0);
    found.no_library = "libcufile.so.0";
    check_not_direct("cuFile is not installed");
    begin_direct(0);
    found.no_symbol = "cuFileRead";
    check_not_direct("cuFile has no cuFileRead");
    begin_direct(0);
    found.no_symbol = "cuFileSetParameterBool";
    check_not_direct("CUFILE_ALLOW_COMPAT_MODE=false");
    begin_direct(0);
    doubles.double_cufile_reset(&(struct double_cufile){.compatible = true});
    found.no_symbol = "cuFileSetParameterBool";
    check_not_direct("nvidia-fs is not loaded");
    begin_direct(0);
    found.fs_type = FUSE_SUPER_MAGIC;
    check_not_direct("type 0x65735546");
}
END_TEST

START_TEST(cufile_fails)
{
    static const char *const calls[] = {"cuFileDriverOpen", "cuFileDriverGetProperties",
                                        "cuFileHandleRegister", "cuFileBufRegister"};

    if (!reads_directly())
        return;
    for (unsigned i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        char why[100];

        begin_direct(0);
        doubles.double_cufile_fail(calls[i], 1, 5030);
        snprintf(why, sizeof(why), "%s: error 5030", calls[i]);
        check_all(device_memory);
        if (strcmp(calls[i], "cuFileBufRegister") == 0)
            ck_assert_uint_eq(status_number(true, "device_memory"), 0);
        check_not_direct(why);
    }
    begin_direct(0);
    doubles.double_cuda_fail("cuMemAlloc_v2", TENSORS + 1,
                             INJECTED); /* after those for the tensors */
    check_not_direct("cuMemAlloc_v2");
}
END_TEST

/* Fails at the first span, and at a later one. */
START_TEST(cufile_fails_in_flight)
{
    if (!reads_directly())
        return;
    for (unsigned call = 1; call < 4; call += 2) {
        begin_direct(SMALL_BUDGET);
        doubles.double_cufile_fail("cuFileRead", call, 5008);
        check_all(device_memory);
        check_not_direct("cuFileRead: error 5008");
        begin_direct(SMALL_BUDGET);
        doubles.double_cufile_fail("cuFileRead", call, EIO);
        check_all(device_memory);
        check_not_direct("cuFileRead: ");
        begin_direct(SMALL_BUDGET);
        doubles.double_cuda_fail("cuMemcpyDtoDAsync_v2", call, INJECTED);
        check_all(device_memory);
        check_not_direct("cuMemcpyDtoDAsync_v2");
        begin_direct(SMALL_BUDGET);
        doubles.double_cuda_fail("cuEventRecord", call, INJECTED);
        check_all(device_memory);
        check_not_direct("cuEventRecord");
    }
    begin_direct(SMALL_BUDGET);
    doubles.double_cufile_shorten(4096);
    check_not_direct("cuFileRead: found 4096 bytes, expected ");
}
END_TEST

/* Other code in the process has opened cuFile, with its compatibility mode. */
START_TEST(cufile_in_use)
{
    CUfileError_t (*open_driver)(void);

    begin_direct(0);
    *(void **)&open_driver = dlsym(dlopen("libcufile.so.0", RTLD_NOW), "cuFileDriverOpen");
    ck_assert_int_eq(open_driver().err, 0);
    check_not_direct("CUFILE_ALLOW_COMPAT_MODE=false");
}
END_TEST

START_TEST(direct_by_two_devices)
{
    struct fstfs_device *first, *other;
    struct fstfs_request request;
    CUcontext context;
    CUdeviceptr address;

    if (!reads_directly())
        return;
    begin_direct(0);
    check_all(device_memory);
    first = device;
    ck_assert_int_eq(fstfs_device(fstfs, "cuda:1", &other), 0);
    ck_assert_int_eq(cuda.cuDevicePrimaryCtxRetain(&context, 1), 0);
    ck_assert_int_eq(cuda.cuCtxPushCurrent_v2(context), 0);
    ck_assert_int_eq(cuda.cuMemAlloc_v2(&address, tensors[5].size), 0);
    request = (struct fstfs_request){.tensor = fstfs_find(checkpoint, tensors[5].name),
                                     .to = (void *)(uintptr_t)address};
    ck_assert_int_eq(
        fstfs_read(checkpoint, &request, 1, &(struct fstfs_read_options){.device = other}), 0);
    check_bytes(request.to, tensors[5].bytes, tensors[5].size);
    ck_assert_int_eq(cuda.cuMemFree_v2(address), 0);
    ck_assert_int_eq(cuda.cuCtxPopCurrent_v2(&context), 0);
    ck_assert_int_eq(cuda.cuDevicePrimaryCtxRelease_v2(1), 0);
    device = first;
    check_all(device_memory);
    finish();
}
END_TEST

/* ---- unified memory ---- */

static void *
plain_memory(uint64_t size)
{
    return malloc(size);
}

START_TEST(unified)
{
    struct fstfs_request requests[TENSORS];

    begin("gb10", 0);
    check_all(managed_memory);
    ck_assert_str_eq(status("backend"), "unified");
    ck_assert_int_eq(read_all(plain_memory, requests), 0);
    for (unsigned i = 0; i < TENSORS; i++) {
        ck_assert_int_eq(memcmp(requests[i].to, tensors[i].bytes, tensors[i].size), 0);
        free(requests[i].to);
    }
    ck_assert_uint_eq(doubles.double_cuda_calls("cuMemHostRegister_v2"), 0);
    check_all(device_memory);
    ck_assert_str_eq(status("backend"), "ring");
    check_status("unified", "the destination is device memory");
    check_all(managed_memory);
    ck_assert_str_eq(status("backend"), "unified");
    finish();
}
END_TEST

/* Even if the device accepts both kinds of memory, one call takes only one of them. */
START_TEST(mixed_memory)
{
    struct fstfs_request requests[2];
    struct fstfs_read_options options = {0};

    begin("gb10", 0);
    options.device = device;
    for (unsigned i = 0; i < 2; i++) {
        requests[i] = (struct fstfs_request){.tensor = fstfs_find(checkpoint, tensors[i].name)};
        requests[i].to = i ? malloc(tensors[i].size) : device_memory(tensors[i].size);
    }
    for (unsigned i = 0; i < 2; i++) {
        struct fstfs_request swapped[] = {requests[i], requests[1 - i]};

        ck_assert_int_eq(fstfs_read(checkpoint, swapped, 2, &options), -EINVAL);
        ck_assert_str_eq(fstfs_error(), "cuda:0: a call reads into device memory or host memory, "
                                        "not into both");
    }
    free_memory(requests[0].to);
    free(requests[1].to);
    finish();
}
END_TEST

/* Aligned memory is read into directly, unless the kernel cannot write to it. */
START_TEST(memory_that_the_kernel_cannot_write)
{
    begin("gb10", 0);
    for (unsigned i = 0; i < TENSORS; i++) {
        const struct fstfs_tensor *tensor = fstfs_find(checkpoint, tensors[i].name);
        size_t shift = tensor->offset % BLOCK_SIZE;
        struct fstfs_read_options options = {.device = i % 2 ? device : NULL};
        struct fstfs_request request = {.tensor = tensor};
        bool large = tensor->size >= 4 * MIB; /* has spans without bytes of other tensors */

        found.mapped_size = block_up(tensor->size) + BLOCK_SIZE;
        found.mapped = aligned_alloc(BLOCK_SIZE, found.mapped_size);
        found.refusals = 0;
        memset(found.mapped, 0, found.mapped_size);
        request.to = found.mapped + shift;
        ck_assert_int_eq(fstfs_read(checkpoint, &request, 1, &options), 0);
        ck_assert_int_eq(memcmp(request.to, tensors[i].bytes, tensor->size), 0);
        ck_assert(!large || found.refusals > 0);
        free(found.mapped);
    }
    finish();
}
END_TEST

START_TEST(mapped)
{
    static const char *const others[] = {"h200", "gh200", "hmm", "tegra"};
    const void *to;

    begin("gb10", 0);
    for (unsigned i = 0; i < TENSORS; i++) {
        const struct fstfs_tensor *tensor = fstfs_find(checkpoint, tensors[i].name);

        ck_assert_int_eq(fstfs_map(checkpoint, tensor, i % 2 ? device : NULL, &to), 0);
        ck_assert_int_eq(memcmp(to, tensors[i].bytes, tensors[i].size), 0);
    }
    ck_assert_int_eq(fstfs_map(checkpoint, NULL, device, &to), -EINVAL);
    finish();
    for (unsigned i = 0; i < sizeof(others) / sizeof(*others); i++) {
        begin(others[i], 0);
        ck_assert_int_eq(fstfs_map(checkpoint, fstfs_tensor(checkpoint, 0), device, &to), -ENOTSUP);
        ck_assert_ptr_nonnull(strstr(fstfs_error(), "cuda:0: the device "));
        finish();
    }
    begin("gb10", 0);
    write_model();
    ck_assert_int_eq(fstfs_map(checkpoint, fstfs_tensor(checkpoint, 0), device, &to), -ESTALE);
    finish();
}
END_TEST

/* ---- slices, memory, cancelling ---- */

/* Random slices, several of one tensor, to any address. The bytes around them do not change. */
START_TEST(strided_slices)
{
    enum { COUNT = 150, EDGE = 64 };
    struct fstfs_request requests[COUNT];
    struct fstfs_slice slices[COUNT][2];
    char *expected[COUNT], *memory[COUNT];
    uint64_t sizes[COUNT];

    begin_direct(SMALL_BUDGET); /* whole rows by cuFile, others packed */
    for (unsigned i = 0; i < COUNT; i++) {
        const struct tensor *t = &tensors[i % 3 ? below(TENSORS) : 5];
        uint64_t shift = below(EDGE), size = 0;

        for (int d = 0; d < 2; d++) {
            uint64_t dimension = d ? t->columns : t->rows;
            struct fstfs_slice *slice = &slices[i][d];

            slice->start = below(dimension);
            slice->stop = slice->start + 1 + below(dimension - slice->start);
            slice->step = 1 + below(3);
            if (d && i % 4 == 0) /* whole rows */
                *slice = (struct fstfs_slice){0, dimension, 1};
            else if (i % 4 == 0)
                slice->step = 1;
        }
        expected[i] = malloc(t->size + 2 * EDGE);
        memset(expected[i], 0x5a, t->size + 2 * EDGE);
        for (uint64_t r = slices[i][0].start; r < slices[i][0].stop; r += slices[i][0].step)
            for (uint64_t c = slices[i][1].start; c < slices[i][1].stop; c += slices[i][1].step)
                expected[i][shift + size++] = t->bytes[r * t->columns + c];
        sizes[i] = size + 2 * EDGE;
        memory[i] = device_memory(sizes[i]);
        push();
        char *filler = malloc(sizes[i]);
        memset(filler, 0x5a, sizes[i]);
        ck_assert_int_eq(cuda.cuMemcpyHtoD_v2((CUdeviceptr)(uintptr_t)memory[i], filler, sizes[i]),
                         0);
        ck_assert_int_eq(cuda.cuStreamSynchronize(NULL), 0);
        free(filler);
        pop();
        requests[i] = (struct fstfs_request){.tensor = fstfs_find(checkpoint, t->name),
                                             .slices = slices[i],
                                             .to = memory[i] + shift};
    }
    ck_assert_msg(fstfs_read(checkpoint, requests, COUNT,
                             &(struct fstfs_read_options){.device = device}) == 0,
                  "%s", fstfs_error());
    ck_assert_uint_gt(doubles.double_cuda_calls("cuMemcpyHtoDAsync_v2"), 0);
    ck_assert(doubles.double_cufile_calls("cuFileRead") > 0 || !reads_directly());
    for (unsigned i = 0; i < COUNT; i++) {
        check_bytes(memory[i], expected[i], sizes[i]);
        free_memory(memory[i]);
        free(expected[i]);
    }
    finish();
}
END_TEST

/* Tensors in one allocation: adjacent copies are joined. */
START_TEST(joined)
{
    struct fstfs_request requests[TENSORS];
    struct fstfs_read_options options = {.device = device};
    uint64_t total = 0, at = 0;
    char *arena;

    begin("h200", 0);
    options.device = device;
    for (unsigned i = 0; i < TENSORS; i++)
        total += tensors[i].size;
    arena = device_memory(total);
    for (unsigned i = 0; i < TENSORS; i++) {
        requests[i] = (struct fstfs_request){.tensor = fstfs_find(checkpoint, tensors[i].name),
                                             .to = arena + at};
        at += tensors[i].size;
    }
    ck_assert_int_eq(fstfs_read(checkpoint, requests, TENSORS, &options), 0);
    for (unsigned i = 0; i < TENSORS; i++)
        check_bytes(requests[i].to, tensors[i].bytes, tensors[i].size);
    ck_assert_uint_lt(doubles.double_cuda_calls("cuMemcpyHtoDAsync_v2"), total / (4 * MIB) + 3);
    free_memory(arena);
    finish();
}
END_TEST

START_TEST(wrong_memory)
{
    struct fstfs_request request;
    struct fstfs_read_options options = {0};
    struct fstfs_device *other;
    CUcontext context;
    CUdeviceptr address;

    begin("h200", 0);
    options.device = device;
    request = (struct fstfs_request){.tensor = fstfs_tensor(checkpoint, 0), .to = malloc(1)};
    ck_assert_int_eq(fstfs_read(checkpoint, &request, 1, &options), -EINVAL);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "is not memory of cuda:0"));
    free(request.to);
    ck_assert_int_eq(fstfs_device(fstfs, "cuda:1", &other), 0);
    ck_assert_int_eq(cuda.cuDevicePrimaryCtxRetain(&context, 1), 0);
    ck_assert_int_eq(cuda.cuCtxPushCurrent_v2(context), 0);
    ck_assert_int_eq(cuda.cuMemAlloc_v2(&address, tensors[0].size), 0);
    request.to = (void *)(uintptr_t)address;
    ck_assert_int_eq(fstfs_read(checkpoint, &request, 1, &options), -EINVAL);
    options.device = other;
    ck_assert_int_eq(fstfs_read(checkpoint, &request, 1, &options), 0);
    ck_assert_int_eq(cuda.cuMemFree_v2(address), 0);
    ck_assert_int_eq(cuda.cuCtxPopCurrent_v2(&context), 0);
    ck_assert_int_eq(cuda.cuDevicePrimaryCtxRelease_v2(1), 0);
    finish();
}
END_TEST

static int
cancel_early(void *arg, uint64_t done, uint64_t total)
{
    return done > total / 4;
}

START_TEST(cancelled)
{
    struct fstfs_request requests[TENSORS];
    struct fstfs_read_options options = {.progress = cancel_early};
    struct fstfs_read *read;

    begin("h200", SMALL_BUDGET);
    options.device = device;
    for (unsigned i = 0; i < TENSORS; i++)
        requests[i] = (struct fstfs_request){.tensor = fstfs_find(checkpoint, tensors[i].name),
                                             .to = device_memory(tensors[i].size)};
    ck_assert_int_eq(fstfs_read(checkpoint, requests, TENSORS, &options), -ECANCELED);
    options.progress = NULL;
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(fstfs_start(checkpoint, requests, TENSORS, &options, &read), 0);
        fstfs_read_free(read);
    }
    ck_assert_int_eq(fstfs_start(checkpoint, NULL, 0, &options, &read), 0);
    ck_assert_int_eq(fstfs_wait(read, -1), 0);
    fstfs_read_free(read);
    for (unsigned i = 0; i < TENSORS; i++)
        free_memory(requests[i].to);
    finish();
}
END_TEST

/* Several reads share a ring of two slots; all of them complete. */
START_TEST(together)
{
    enum { READS = 5 };
    struct fstfs_request requests[READS][TENSORS];
    struct fstfs_read_options options = {0};
    struct fstfs_read *reads[READS];

    begin("h200", SMALL_BUDGET);
    options.device = device;
    for (int r = 0; r < READS; r++) {
        for (unsigned i = 0; i < TENSORS; i++)
            requests[r][i] =
                (struct fstfs_request){.tensor = fstfs_find(checkpoint, tensors[i].name),
                                       .to = device_memory(tensors[i].size)};
        ck_assert_int_eq(fstfs_start(checkpoint, requests[r], TENSORS, &options, &reads[r]), 0);
    }
    for (int r = READS; r-- > 0;) {
        ck_assert_int_eq(fstfs_wait(reads[r], -1), 0);
        fstfs_read_free(reads[r]);
        for (unsigned i = 0; i < TENSORS; i++) {
            check_bytes(requests[r][i].to, tensors[i].bytes, tensors[i].size);
            free_memory(requests[r][i].to);
        }
    }
    finish();
}
END_TEST

/* An error of the storage fails the read with every backend. */
START_TEST(changed)
{
    struct fstfs_request requests[TENSORS];

    begin("h200", 0);
    write_model();
    ck_assert_int_eq(read_all(device_memory, requests), -ESTALE);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "changed, replaced or removed"));
    for (unsigned i = 0; i < TENSORS; i++)
        free_memory(requests[i].to);
    finish();
    begin_direct(0);
    check_all(device_memory);
    write_model();
    ck_assert_int_eq(read_all(device_memory, requests), -ESTALE);
    for (unsigned i = 0; i < TENSORS; i++)
        free_memory(requests[i].to);
    finish();
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("gpu");
    TCase *c = tcase_create("gpu");

    tcase_set_timeout(c, 240);
    tcase_add_unchecked_fixture(c, make_model, remove_model);
    tcase_add_test(c, names);
    tcase_add_test(c, cuda_is_loaded_on_demand_only);
    tcase_add_test(c, no_device);
    tcase_add_test(c, ring);
    tcase_add_test(c, small_ring);
    tcase_add_test(c, pageable);
    tcase_add_test(c, no_registration);
    tcase_add_test(c, nothing_works);
    tcase_add_test(c, status_while_the_driver_loads);
    tcase_add_test(c, direct);
    tcase_add_test(c, not_direct);
    tcase_add_test(c, cufile_fails);
    tcase_add_test(c, cufile_fails_in_flight);
    tcase_add_test(c, cufile_in_use);
    tcase_add_test(c, direct_by_two_devices);
    tcase_add_test(c, unified);
    tcase_add_test(c, mixed_memory);
    tcase_add_test(c, memory_that_the_kernel_cannot_write);
    tcase_add_test(c, mapped);
    tcase_add_test(c, strided_slices);
    tcase_add_test(c, joined);
    tcase_add_test(c, wrong_memory);
    tcase_add_test(c, cancelled);
    tcase_add_test(c, together);
    tcase_add_test(c, changed);
    suite_add_tcase(s, c);
    return s;
}

#include "../unit/check_main.h"
