// Package child starts processes that do not outlive the one that started them.
package child

import (
	"os/exec"
	"runtime"
)

// Start starts a child process that ends when this one does, however that ends, where the
// system can do that, and that a terminal's Ctrl-C does not reach: it is told to stop when all
// who use it have stopped. The channel is closed when it has ended and was waited for; how is
// then in cmd.ProcessState.
func Start(cmd *exec.Cmd) (exited <-chan struct{}, err error) {
	cmd.SysProcAttr = attributes()
	started, ended := make(chan error), make(chan struct{})
	go func() {
		// To Linux the parent is a thread: this one lives as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it says no more than ProcessState
		}
	}()
	return ended, <-started
}
