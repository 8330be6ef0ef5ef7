/*
 * Preloaded into a process to shift its wall clock by as many seconds as the file named by HEADRACE_CLOCK_FILE says.
 * The file is looked at every 50 ms. Other clocks stay as they are.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*real_clock)(clockid_t, struct timespec *);

static long shift(void) {
    static _Thread_local long seconds, looked_ms = -1000;
    const char *name = getenv("HEADRACE_CLOCK_FILE");
    struct timespec now;
    char text[32];
    long now_ms;
    int file;
    if (!name) return 0;
    if (!real_clock) real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    real_clock(CLOCK_MONOTONIC, &now);
    now_ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (now_ms - looked_ms < 50) return seconds;
    looked_ms = now_ms;
    seconds = 0;
    file = open(name, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t length = read(file, text, sizeof text - 1);
        text[length > 0 ? length : 0] = 0;
        seconds = atol(text);
        close(file);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result;
    long by = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ? shift() : 0;
    if (!real_clock) real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    result = real_clock(clock, now);
    if (result == 0) now->tv_sec += by;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (into) *into = exact.tv_sec;
    return exact.tv_sec;
}
