package client

import (
	"fmt"
	"strings"
	"testing"
)

func TestConfigCheck(t *testing.T) {
	good := Config{Brokers: []string{"b:9092"}}
	for name, tt := range map[string]struct {
		change func(*Config)
		want   string // in the error; empty: none
	}{
		"good":                {func(*Config) {}, ""},
		"no brokers":          {func(c *Config) { c.Brokers = nil }, "no brokers"},
		"lane twice":          {func(c *Config) { c.Lanes = []Lane{{"a", 1}, {"a", 2}} }, `lane "a"`},
		"lane without delay":  {func(c *Config) { c.Lanes = []Lane{{"a", 0}} }, `lane "a"`},
		"unknown mechanism":   {func(c *Config) { c.SASL = &SASL{Mechanism: "NTLM"} }, `unknown SASL mechanism "NTLM"`},
		"known mechanism":     {func(c *Config) { c.SASL = &SASL{"SCRAM-SHA-512", "u", "p"} }, ""},
		"both, of all faults": {func(c *Config) { c.Brokers, c.SASL = nil, &SASL{} }, "no brokers\nunknown SASL"},
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			tt.change(&c)
			_, err := c.Options("test")
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	if s := fmt.Sprintf("%v %+v %#v", SASL{"PLAIN", "u", "hunter2"}, &SASL{"PLAIN", "u", "hunter2"},
		SASL{"PLAIN", "u", "hunter2"}); strings.Contains(s, "hunter2") {
		t.Errorf("prints the password: %s", s)
	}
}
