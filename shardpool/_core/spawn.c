/* Starts a process that cannot outlive this one, not even for the moment in which its interpreter starts:
 * posix_spawn cannot ask for the death signal, and a worker that asks for it itself does so a second later.
 *
 * Between fork and exec only calls are made that are safe after a fork of a process with threads (signal-safety(7)). */
#include "sp_python.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct birth {
    const char *program;
    char **arguments, **environment;
    int *descriptors;
    Py_ssize_t descriptor_count;
    sigset_t held_back;
    pid_t parent;
    int failure; /* pipe: errno of what failed; closed by a successful exec */
};

/* No handler of this process may run in the child; what Python ignores is not ignored there. */
static void reset_signals(void)
{
    struct sigaction action = {.sa_handler = SIG_DFL};
    for (int number = 1; number < NSIG; number++)
        (void)sigaction(number, &action, NULL);
}

static bool prepare(const struct birth *birth)
{
    reset_signals();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return false;
    if (getppid() != birth->parent)
        _exit(1); /* it died before it was to be told of */
    /* Its own group: Ctrl-C reaches the supervisor alone, which drains. */
    if (setpgid(0, 0) < 0 || sigprocmask(SIG_SETMASK, &birth->held_back, NULL) < 0)
        return false;
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing < 0 || (nothing != STDIN_FILENO && (dup2(nothing, STDIN_FILENO) < 0 || close(nothing) < 0)))
        return false;
    for (Py_ssize_t i = 0; i < birth->descriptor_count; i++)
        if (fcntl(birth->descriptors[i], F_SETFD, 0) < 0)
            return false;
    return true;
}

static _Noreturn void become(const struct birth *birth)
{
    if (prepare(birth))
        execve(birth->program, birth->arguments, birth->environment);
    int error = errno;
    (void)!write(birth->failure, &error, sizeof error);
    _exit(127);
}

/* Returns the pid, or -1 with errno. */
static pid_t give_birth(struct birth *birth)
{
    int failure[2];
    if (pipe2(failure, O_CLOEXEC) < 0)
        return -1;
    birth->failure = failure[1];
    birth->parent = getpid();
    sigset_t all, before;
    sigfillset(&all);
    /* A handler that ran in the child would write to a wakeup descriptor that is the parent's, too. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    if (pid == 0)
        become(birth);
    int error = pid < 0 ? errno : 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(failure[1]);
    if (pid > 0) {
        ssize_t got;
        do
            got = read(failure[0], &error, sizeof error);
        while (got < 0 && errno == EINTR);
        if (got == (ssize_t)sizeof error) {
            (void)waitpid(pid, NULL, 0);
            pid = -1;
        }
    }
    close(failure[0]);
    errno = error;
    return pid;
}

/* NULL-terminated pointers into the bytes objects of a list, which must outlive it. */
static char **strings(PyObject *list)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    char **array = PyMem_Calloc((size_t)count + 1, sizeof *array);
    if (array == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        array[i] = PyBytes_AsString(PyList_GET_ITEM(list, i));
        if (array[i] == NULL) {
            PyMem_Free(array);
            return NULL;
        }
    }
    return array;
}

/* The numbers of a list, each at least 0; the caller frees them. */
static int *numbers(PyObject *list)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    int *array = PyMem_Calloc((size_t)count + 1, sizeof *array);
    if (array == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        long number = PyLong_AsLong(PyList_GET_ITEM(list, i));
        if (number < 0 || number > INT_MAX) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "%ld is no descriptor and no signal", number);
            PyMem_Free(array);
            return NULL;
        }
        array[i] = (int)number;
    }
    return array;
}

static PyObject *spawn(PyObject *module, PyObject *args)
{
    (void)module;
    struct birth birth;
    PyObject *arguments, *environment, *descriptors, *held_back;
    if (!PyArg_ParseTuple(args, "yO!O!O!O!", &birth.program, &PyList_Type, &arguments, &PyList_Type, &environment,
                          &PyList_Type, &descriptors, &PyList_Type, &held_back))
        return NULL;
    birth.arguments = strings(arguments);
    birth.environment = birth.arguments == NULL ? NULL : strings(environment);
    birth.descriptors = birth.environment == NULL ? NULL : numbers(descriptors);
    birth.descriptor_count = PyList_GET_SIZE(descriptors);
    int *held = birth.descriptors == NULL ? NULL : numbers(held_back);
    pid_t pid = -1;
    if (held != NULL) {
        sigemptyset(&birth.held_back);
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(held_back); i++)
            sigaddset(&birth.held_back, held[i]);
        pid = give_birth(&birth);
        if (pid < 0)
            PyErr_SetFromErrno(PyExc_OSError);
    }
    PyMem_Free(held);
    PyMem_Free(birth.descriptors);
    PyMem_Free(birth.environment);
    PyMem_Free(birth.arguments);
    return pid < 0 ? NULL : PyLong_FromLong((long)pid);
}

static PyMethodDef spawn_functions[] = {
    {"spawn", spawn, METH_VARARGS,
     "spawn(program, arguments, environment, descriptors, held_back): a child that dies with this process; its pid."},
    {NULL, NULL, 0, NULL},
};

int sp_add_spawn(PyObject *module) { return PyModule_AddFunctions(module, spawn_functions); }
