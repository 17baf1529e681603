//go:build !linux

package child

import "syscall"

// attributes cannot tie the child to its parent on this system: it outlives one that is killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
