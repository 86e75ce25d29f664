/* MIG in the stand-in NVML: state in a file, profiles and placements of an H100 80GB. See nvml.c. */
#define INVALID 2
#define INSUFFICIENT_SIZE 7
#define IN_USE 19
#define INSUFFICIENT_RESOURCES 23
#define MOST 8

typedef struct { unsigned start, size; } place_t;
typedef struct { int gpu, profile, cis, ci[MOST]; unsigned start; } gi_t;
typedef struct { gi_t *gi; int slices; } ci_t;
typedef struct {
    unsigned version, id, p2p, slices, count, sms, ces, decs, encs, jpegs, ofas;
    unsigned long long memory;
    char name[96];
} gi_profile_t;
typedef struct {
    unsigned version, id, slices, count, sms, ces, decs, encs, jpegs, ofas;
    char name[96];
} ci_profile_t;
typedef struct { void *device; unsigned id, profile; place_t place; } gi_info_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process_t;

/* By NVML's number of the profile: its id, slices, memory slices, how many fit, where it may start. */
static const struct { int number; unsigned id, slices, size, count; const char *starts, *name; } profiles[] = {
    {0, 19, 1, 1, 7, "0123456", "1g.10gb"}, {1, 14, 2, 2, 3, "024", "2g.20gb"}, {2, 9, 3, 4, 2, "04", "3g.40gb"},
    {3, 5, 4, 4, 1, "0", "4g.40gb"}, {4, 0, 7, 8, 1, "0", "7g.80gb"}, {7, 20, 1, 1, 1, "0123456", "1g.10gb+me"},
    {9, 15, 1, 2, 4, "0246", "1g.20gb"},
};
#define PROFILES (sizeof profiles / sizeof *profiles)
static const unsigned ci_slices[] = {1, 2, 3, 4, 7};

static struct { int mode, pending; } modes[64];
static gi_t gis[64 * MOST];
static ci_t cis[64 * MOST * MOST];
static int gi_count;

static const char *mig_file(void) { return getenv("FAKE_NVML_MIG"); }

static void mig_load(void)
{
    FILE *file = mig_file() ? fopen(mig_file(), "r") : NULL;
    char line[256], list[128], *next, *one;
    int gpu, a, b;
    memset(modes, 0, sizeof modes);
    gi_count = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "gpu %d %d %d", &gpu, &a, &b) == 3) { modes[gpu].mode = a; modes[gpu].pending = b; }
        if (sscanf(line, "instance %d %d %d %127s", &gpu, &a, &b, list) == 4) {
            gi_t *gi = &gis[gi_count++];
            *gi = (gi_t){.gpu = gpu, .profile = a, .start = b};
            for (one = strtok_r(list, ",", &next); one; one = strtok_r(NULL, ",", &next))
                if (*one != '-') gi->ci[gi->cis++] = atoi(one);
        }
    }
    if (file) fclose(file);
}

static void mig_save(void)
{
    FILE *file = fopen(mig_file(), "w");
    int i, j;
    for (i = 0; i < gpus(); i++) fprintf(file, "gpu %d %d %d\n", i, modes[i].mode, modes[i].pending);
    for (i = 0; i < gi_count; i++) {
        if (gis[i].gpu < 0) continue;
        fprintf(file, "instance %d %d %d ", gis[i].gpu, gis[i].profile, gis[i].start);
        for (j = 0; j < gis[i].cis; j++) fprintf(file, "%s%d", j ? "," : "", gis[i].ci[j]);
        fprintf(file, "%s\n", gis[i].cis ? "" : "-");
    }
    fclose(file);
}

static int has_clients(int gpu)
{
    const char *given = getenv("FAKE_NVML_CLIENTS");
    char all[512], *next, *one;
    snprintf(all, sizeof all, "%s", given ? given : "");
    for (one = strtok_r(all, ",", &next); one; one = strtok_r(NULL, ",", &next))
        if (atoi(one) == gpu) return 1;
    return 0;
}

int nvmlDeviceGetMigMode(device_t *d, int *now, int *later)
{
    if (!mig_file()) return pair("nvmlDeviceGetMigMode", d, 0, 1, now, later);
    mig_load();
    return pair("nvmlDeviceGetMigMode", d, modes[d->index].mode, modes[d->index].pending, now, later);
}

int nvmlDeviceSetMigMode(device_t *d, unsigned mode, unsigned *status)
{
    int code = fault("nvmlDeviceSetMigMode", d->index), i;
    if (code) return code;
    mig_load();
    for (i = 0; i < gi_count; i++)
        if (gis[i].gpu == d->index) return IN_USE;
    modes[d->index].pending = mode;
    *status = 0;
    if (getenv("FAKE_NVML_MIG_LATE") || has_clients(d->index)) *status = IN_USE;
    else modes[d->index].mode = mode;
    mig_save();
    return 0;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(device_t *d, unsigned number, gi_profile_t *out)
{
    unsigned i;
    (void)d;
    for (i = 0; i < PROFILES; i++) {
        if (profiles[i].number != (int)number) continue;
        out->id = profiles[i].id; out->slices = profiles[i].slices; out->count = profiles[i].count;
        snprintf(out->name, sizeof out->name, "MIG %s", profiles[i].name);
        return 0;
    }
    return NOT_SUPPORTED;
}

static int by_id(unsigned id)
{
    unsigned i;
    for (i = 0; i < PROFILES; i++) if (profiles[i].id == id) return i;
    return -1;
}

int nvmlDeviceGetGpuInstances(device_t *d, unsigned id, gi_t **out, unsigned *count)
{
    int i;
    unsigned found = 0;
    if (!modes[d->index].mode) return NOT_SUPPORTED;
    for (i = 0; i < gi_count; i++)
        if (gis[i].gpu == d->index && gis[i].profile == by_id(id)) out[found++] = &gis[i];
    *count = found;
    return 0;
}

int nvmlGpuInstanceGetInfo(gi_t *gi, gi_info_t *out)
{
    out->id = gi - gis;
    out->profile = profiles[gi->profile].id;
    out->place = (place_t){gi->start, profiles[gi->profile].size};
    return 0;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(gi_t *gi, unsigned number, unsigned engine, ci_profile_t *out)
{
    if (engine || number >= sizeof ci_slices / sizeof *ci_slices) return INVALID;
    if (ci_slices[number] > profiles[gi->profile].slices) return NOT_SUPPORTED;
    out->id = number;
    out->slices = ci_slices[number];
    out->count = profiles[gi->profile].slices / ci_slices[number];
    return 0;
}

int nvmlGpuInstanceGetComputeInstances(gi_t *gi, unsigned id, ci_t **out, unsigned *count)
{
    int i;
    unsigned found = 0;
    for (i = 0; i < gi->cis; i++) {
        if (gi->ci[i] != (int)ci_slices[id]) continue;
        cis[(gi - gis) * MOST + found] = (ci_t){gi, gi->ci[i]};
        out[found] = &cis[(gi - gis) * MOST + found];
        found++;
    }
    *count = found;
    return 0;
}

int nvmlComputeInstanceDestroy(ci_t *ci)
{
    int i, code = fault("nvmlComputeInstanceDestroy", ci->gi->gpu);
    if (code) return code;
    if (has_clients(ci->gi->gpu)) return IN_USE;
    for (i = 0; i < ci->gi->cis && ci->gi->ci[i] != ci->slices; i++);
    if (i == ci->gi->cis) return INVALID;
    memmove(&ci->gi->ci[i], &ci->gi->ci[i + 1], (--ci->gi->cis - i) * sizeof(int));
    mig_save();
    return 0;
}

int nvmlGpuInstanceDestroy(gi_t *gi)
{
    int code = fault("nvmlGpuInstanceDestroy", gi->gpu);
    if (code) return code;
    if (gi->cis) return IN_USE;
    gi->gpu = -1;
    mig_save();
    return 0;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(device_t *d, unsigned id, const place_t *place, gi_t **out)
{
    int code = fault("nvmlDeviceCreateGpuInstanceWithPlacement", d->index), i, profile = by_id(id);
    if (code) return code;
    if (!modes[d->index].mode) return NOT_SUPPORTED;
    if (profile < 0 || place->size != profiles[profile].size) return INVALID;
    if (place->start > 7 || !strchr(profiles[profile].starts, '0' + place->start)) return INVALID;
    for (i = 0; i < gi_count; i++) {
        if (gis[i].gpu != d->index) continue;
        unsigned size = profiles[gis[i].profile].size;
        if (place->start < gis[i].start + size && gis[i].start < place->start + place->size)
            return INSUFFICIENT_RESOURCES;
        if (strchr(profiles[profile].name, '+') && gis[i].profile == profile) return INSUFFICIENT_RESOURCES;
    }
    gis[gi_count] = (gi_t){.gpu = d->index, .profile = profile, .start = place->start};
    *out = &gis[gi_count++];
    mig_save();
    return 0;
}

int nvmlGpuInstanceCreateComputeInstance(gi_t *gi, unsigned id, ci_t **out)
{
    int code = fault("nvmlGpuInstanceCreateComputeInstance", gi->gpu), i, taken = ci_slices[id];
    if (code) return code;
    for (i = 0; i < gi->cis; i++) taken += gi->ci[i];
    if (taken > (int)profiles[gi->profile].slices) return INSUFFICIENT_RESOURCES;
    gi->ci[gi->cis++] = ci_slices[id];
    cis[0] = (ci_t){gi, ci_slices[id]};
    *out = &cis[0];
    mig_save();
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t **out)
{
    unsigned index;
    if (sscanf(uuid, "GPU-00000000-0000-0000-0000-%x", &index) != 1) return INVALID;
    return nvmlDeviceGetHandleByIndex_v2(index, out);
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t *d, unsigned *count, process_t *out)
{
    const char *given = getenv("FAKE_NVML_CLIENTS");
    char all[512], *next, *one;
    unsigned found = 0;
    snprintf(all, sizeof all, "%s", given ? given : "");
    for (one = strtok_r(all, ",", &next); one; one = strtok_r(NULL, ",", &next)) {
        if (atoi(one) != d->index || !strchr(one, ':')) continue;
        if (found < *count && out) out[found] = (process_t){.pid = atoi(strchr(one, ':') + 1)};
        found++;
    }
    if (found > *count) { *count = found; return INSUFFICIENT_SIZE; }
    *count = found;
    return 0;
}
