package child

import "syscall"

// attributes makes the kernel kill the child when its parent ends.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
