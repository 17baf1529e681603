package embedded

import (
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// An engine is a program that serves the protocols of ClickHouse.
type engine struct {
	path    string
	library string // for millrace-clickhouse; empty for a clickhouse binary
}

// findEngine returns the configured library, otherwise a clickhouse binary on PATH, otherwise the pinned library.
func findEngine(ctx context.Context, cfg Config) (engine, error) {
	library := cfg.library
	if library == "" {
		library = os.Getenv("MILLRACE_LIBCHDB")
	}
	if library == "" {
		if path, err := exec.LookPath("clickhouse"); err == nil {
			return engine{path: path}, nil
		}
	}
	binary, err := findBinary(cfg.Binary)
	if err != nil {
		return engine{}, err
	}
	if library == "" {
		if library, err = Fetch(ctx, cfg.Progress); err != nil {
			return engine{}, err
		}
	}
	if library, err = filepath.Abs(library); err != nil {
		return engine{}, err
	}
	if _, err := os.Stat(library); err != nil {
		return engine{}, fmt.Errorf("find the library libchdb: %w", err)
	}
	return engine{path: binary, library: library}, nil
}

func findBinary(path string) (string, error) {
	const name = "millrace-clickhouse"
	if path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("find %s: %w", name, err)
		}
		return filepath.Abs(path)
	}
	if self, err := os.Executable(); err == nil {
		if path := filepath.Join(filepath.Dir(self), name); isFile(path) {
			return path, nil
		}
	}
	if path, err := exec.LookPath(name); err == nil {
		return filepath.Abs(path)
	}
	return "", errors.New("the command " + name + " is neither beside this executable nor on PATH, " +
		"and no clickhouse binary is on PATH: build it (make build), or put a clickhouse binary on PATH")
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// arguments writes the configuration of the engine into dir and returns its arguments.
func (e engine) arguments(dir string, ports []int, cfg Config) ([]string, error) {
	config := filepath.Join(dir, "engine.xml")
	data := filepath.Join(dir, "data")
	users := filepath.Join(dir, "users.xml")
	if err := os.WriteFile(users, []byte(cmp.Or(cfg.Users, usersConfig)), 0o600); err != nil {
		return nil, fmt.Errorf("write the engine's users: %w", err)
	}
	if e.library != "" {
		settings, err := libraryConfig(users, cfg)
		if err == nil {
			err = os.WriteFile(config, settings, 0o600)
		}
		if err != nil {
			return nil, fmt.Errorf("write the engine's settings: %w", err)
		}
		return []string{
			"-lib", e.library, "-path", data, "-host", "127.0.0.1", "-tcp", strconv.Itoa(ports[0]),
			"-http", strconv.Itoa(ports[1]), "-config", config, "-parent-pipe",
		}, nil
	}
	settings, err := serverConfig(data, users, ports, cfg)
	if err == nil {
		err = os.WriteFile(config, settings, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("write the engine's settings: %w", err)
	}
	return []string{"server", "--config-file=" + config}, nil
}

// engineLimits keep the engine small, so that it can share a machine of two cores with a broker and workers. System
// log tables are not configured, because they would fill the disk.
const engineLimits = `
  <mark_cache_size>134217728</mark_cache_size>
  <index_mark_cache_size>33554432</index_mark_cache_size>
  <primary_index_cache_size>134217728</primary_index_cache_size>
  <uncompressed_cache_size>0</uncompressed_cache_size>
  <max_server_memory_usage_to_ram_ratio>0.5</max_server_memory_usage_to_ram_ratio>
  <background_pool_size>2</background_pool_size>
  <background_schedule_pool_size>4</background_schedule_pool_size>
  <max_concurrent_queries>200</max_concurrent_queries>
  <merge_tree>
    <number_of_free_entries_in_pool_to_lower_max_size_of_merge
    >1</number_of_free_entries_in_pool_to_lower_max_size_of_merge>
    <number_of_free_entries_in_pool_to_execute_mutation>1</number_of_free_entries_in_pool_to_execute_mutation>
    <number_of_free_entries_in_pool_to_execute_optimize_entire_partition
    >1</number_of_free_entries_in_pool_to_execute_optimize_entire_partition>
  </merge_tree>
`

const usersConfig = `<clickhouse>
  <profiles><default/></profiles>
  <quotas><default/></quotas>
  <users><default>
    <password></password>
    <networks><ip>127.0.0.1</ip></networks>
    <profile>default</profile>
    <quota>default</quota>
  </default></users>
</clickhouse>
`

// libraryConfig returns the configuration for libchdb, which has its own default for users.
func libraryConfig(users string, cfg Config) ([]byte, error) {
	if cfg.Users == "" {
		return []byte("<clickhouse>" + engineLimits + cfg.Settings + "</clickhouse>\n"), nil
	}
	var b bytes.Buffer
	if err := xml.EscapeText(&b, []byte(users)); err != nil {
		return nil, err
	}
	return []byte("<clickhouse><users_config>" + b.String() + "</users_config>" +
		engineLimits + cfg.Settings + "</clickhouse>\n"), nil
}

func serverConfig(data, users string, ports []int, cfg Config) ([]byte, error) {
	var b bytes.Buffer
	for _, path := range []*string{&data, &users} {
		b.Reset()
		if err := xml.EscapeText(&b, []byte(*path)); err != nil {
			return nil, err
		}
		*path = b.String()
	}
	return fmt.Appendf(nil, `<clickhouse>
  <logger><level>warning</level><console>1</console></logger>
  <listen_host>127.0.0.1</listen_host>
  <tcp_port>%d</tcp_port>
  <http_port>%d</http_port>
  <path>%s/</path>
  <tmp_path>%s/tmp/</tmp_path>
  <user_files_path>%s/user_files/</user_files_path>
  <format_schema_path>%s/format_schemas/</format_schema_path>
  <user_directories><users_xml><path>%s</path></users_xml></user_directories>
  <default_profile>default</default_profile>
  <default_database>default</default_database>%s%s</clickhouse>
`, ports[0], ports[1], data, data, data, data, users, engineLimits, cfg.Settings), nil
}
