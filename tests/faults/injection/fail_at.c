/* Fails, or kills the process, at the N-th call that changes a disk below a folder. Loaded with LD_PRELOAD; a process is
 * armed after its fork by fail_at_arm(). Only calls on files below the folder count, so that libraries' own files, logs
 * and pipes do not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_length;
static long when = 0;      /* the call that fails; 0: none, count only */
static int how = 0;        /* an errno; -1: SIGKILL */
static int lasting = 0;    /* every call from the N-th on fails, as on a full disk */
static int trace = -1;     /* where calls are noted, a line each */
static atomic_long *calls; /* shared with the processes that this one forks */
static __thread char named[PATH_MAX]; /* what the last call that was looked at is about */

void fail_at_arm(const char *folder, long number, int error, int stays, int noted) {
    strncpy(root, folder, sizeof root - 1);
    calls = mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    when = number, how = error, lasting = stays, trace = noted;
    root_length = strlen(root);
}

long fail_at_calls(void) { return *calls; }

static int below(const char *path) {
    if (!root_length || strncmp(path, root, root_length) != 0) return 0;
    snprintf(named, sizeof named, "%s", path + root_length);
    return 1;
}

/* The folder is put before a relative path, so that a call is noted under its whole name. */
static int below_at(int folder, const char *path) {
    char link[64], place[PATH_MAX], whole[2 * PATH_MAX];
    if (path[0] == '/') return below(path);
    if (folder == AT_FDCWD) {
        if (!getcwd(place, sizeof place)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t n = readlink(link, place, sizeof place - 1);
        if (n < 0) return 0;
        place[n] = 0;
    }
    snprintf(whole, sizeof whole, "%s/%s", place, path);
    return below(whole);
}

static int below_fd(int fd) {
    char link[64], place[PATH_MAX];
    if (!root_length) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, place, sizeof place - 1);
    if (n < 0) return 0;
    place[n] = 0;
    return below(place);
}

/* Whether this call is the one: then errno is set. */
static int fails(const char *kind) {
    long number = atomic_fetch_add(calls, 1) + 1;
    if (trace >= 0) {
        char line[PATH_MAX + 64];
        int size = snprintf(line, sizeof line, "%ld %s %s\n", number, kind, named);
        syscall(SYS_write, trace, line, size);
    }
    if (!when || (lasting ? number < when : number != when)) return 0;
    if (how < 0) kill(getpid(), SIGKILL);
    errno = how;
    return 1;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    return below_fd(fd) && fails("write") ? -1 : real(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    return below_fd(fd) && fails("write") ? -1 : real(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    return below_fd(fd) && fails("write") ? -1 : real(fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    return below_fd(fd) && fails("write") ? -1 : real(fd, parts, count);
}
size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
    REAL(size_t, "fwrite", const void *, size_t, size_t, FILE *);
    return below_fd(fileno(file)) && fails("write") ? 0 : real(data, size, count, file);
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    return below_fd(out) && fails("write") ? -1 : real(in, from, out, to, size, flags);
}
ssize_t sendfile(int out, int in, off_t *from, size_t size) {
    REAL(ssize_t, "sendfile", int, int, off_t *, size_t);
    return below_fd(out) && fails("write") ? -1 : real(out, in, from, size);
}
ssize_t sendfile64(int out, int in, off64_t *from, size_t size) {
    REAL(ssize_t, "sendfile64", int, int, off64_t *, size_t);
    return below_fd(out) && fails("write") ? -1 : real(out, in, from, size);
}
int ftruncate(int fd, off_t size) {
    REAL(int, "ftruncate", int, off_t);
    return below_fd(fd) && fails("ftruncate") ? -1 : real(fd, size);
}
int ftruncate64(int fd, off64_t size) {
    REAL(int, "ftruncate64", int, off64_t);
    return below_fd(fd) && fails("ftruncate") ? -1 : real(fd, size);
}
int fsync(int fd) {
    REAL(int, "fsync", int);
    return below_fd(fd) && fails("fsync") ? -1 : real(fd);
}
int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    return below_fd(fd) && fails("fsync") ? -1 : real(fd);
}
int rename(const char *old, const char *new) {
    REAL(int, "rename", const char *, const char *);
    return below_at(AT_FDCWD, new) && fails("rename") ? -1 : real(old, new);
}
int renameat(int from, const char *old, int to, const char *new) {
    REAL(int, "renameat", int, const char *, int, const char *);
    return below_at(to, new) && fails("rename") ? -1 : real(from, old, to, new);
}
/* One that is there already is no change, and the system says so whatever else is wrong. */
int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    return access(path, F_OK) != 0 && below_at(AT_FDCWD, path) && fails("mkdir") ? -1 : real(path, mode);
}
int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    return faccessat(folder, path, F_OK, 0) != 0 && below_at(folder, path) && fails("mkdir") ? -1 : real(folder, path, mode);
}

/* Removing needs no room and works on a disk that is full; it is a place to be killed at, though. */
int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    if (how < 0 && below_at(AT_FDCWD, path)) fails("unlink");
    return real(path);
}
int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    if (how < 0 && below_at(folder, path)) fails("unlink");
    return real(folder, path, flags);
}
int rmdir(const char *path) {
    REAL(int, "rmdir", const char *);
    if (how < 0 && below_at(AT_FDCWD, path)) fails("unlink");
    return real(path);
}

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, #name, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        int makes = flags & O_CREAT && access(path, F_OK) != 0; \
        return makes && below_at(AT_FDCWD, path) && fails("create") ? -1 : real(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(int, #name, int, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        int makes = flags & O_CREAT && faccessat(folder, path, F_OK, 0) != 0; \
        return makes && below_at(folder, path) && fails("create") ? -1 : real(folder, path, flags, mode); \
    }
OPENS_AT(openat)
OPENS_AT(openat64)
