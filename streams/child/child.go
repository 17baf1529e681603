// Package child starts processes that end with the process that started them.
package child

import (
	"os/exec"
	"runtime"
)

// Start starts cmd in a process group of its own, so that a terminal's Ctrl-C does not reach it:
// the parent stops it in order. On Linux the kernel kills the child when this process ends, even
// after a crash; on other systems it survives a killed parent. exited is closed after the child has
// ended and Wait has returned; cmd.ProcessState then has the result.
func Start(cmd *exec.Cmd) (exited <-chan struct{}, err error) {
	cmd.SysProcAttr = attributes()
	started, ended := make(chan error), make(chan struct{})
	go func() {
		// Linux kills the child when the thread that started it ends, so this thread must live as long as
		// the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // ProcessState has the same information
		}
	}()
	return ended, <-started
}
