package embedded

import "syscall"

// childAttributes have the kernel kill the child when its parent is gone, and keep a
// terminal's Ctrl-C from it: it is told to stop when all who write to it have stopped.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
