//go:build !linux

package embedded

import "syscall"

// childAttributes keep a terminal's Ctrl-C from the child; its end is told to it by
// the closed pipe alone.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
