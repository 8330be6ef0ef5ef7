/*
 * Preloaded into a process to make its disk fail: while the file named by HEADRACE_SHIM_FLAG exists, fsync, fdatasync
 * and sync_file_range of files whose path contains HEADRACE_SHIM_PATH return EIO.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int broken(int fd) {
    const char *flag = getenv("HEADRACE_SHIM_FLAG"), *part = getenv("HEADRACE_SHIM_PATH");
    char link[64], path[4096];
    ssize_t length;
    if (!flag || !part || access(flag, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, part) != NULL;
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    if (broken(fd)) { errno = EIO; return -1; }
    return real(fd);
}

int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    if (broken(fd)) { errno = EIO; return -1; }
    return real(fd);
}

int sync_file_range(int fd, off64_t offset, off64_t count, unsigned int flags) {
    int (*real)(int, off64_t, off64_t, unsigned int) =
        (int (*)(int, off64_t, off64_t, unsigned int))dlsym(RTLD_NEXT, "sync_file_range");
    if (broken(fd)) { errno = EIO; return -1; }
    return real(fd, offset, count, flags);
}
