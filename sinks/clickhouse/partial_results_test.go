package clickhouse_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ClickHouse/ch-go/proto"
	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/embedded"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
)

// partialProfiles returns settings with which a server returns partial or outdated results without an error.
func partialProfiles() map[string]string {
	return map[string]string{
		"rows_to_read": "<max_rows_to_read>1</max_rows_to_read><read_overflow_mode>break</read_overflow_mode>",
		"rows_to_read_leaf": "<max_rows_to_read_leaf>1</max_rows_to_read_leaf>" +
			"<read_overflow_mode_leaf>break</read_overflow_mode_leaf>",
		"group_by_any": "<max_rows_to_group_by>1</max_rows_to_group_by>" +
			"<group_by_overflow_mode>any</group_by_overflow_mode>",
		"group_by_break": "<max_rows_to_group_by>1</max_rows_to_group_by>" +
			"<group_by_overflow_mode>break</group_by_overflow_mode>",
		"sort": "<max_rows_to_sort>1</max_rows_to_sort><sort_overflow_mode>break</sort_overflow_mode>",
		"result": "<max_result_rows>1</max_result_rows><max_block_size>1</max_block_size>" +
			"<result_overflow_mode>break</result_overflow_mode>",
		"time": "<max_execution_time>0.000001</max_execution_time>" +
			"<timeout_overflow_mode>break</timeout_overflow_mode>",
		"time_leaf": "<max_execution_time_leaf>0.000001</max_execution_time_leaf>" +
			"<timeout_overflow_mode_leaf>break</timeout_overflow_mode_leaf>",
		"set": "<max_rows_in_set>1</max_rows_in_set><set_overflow_mode>break</set_overflow_mode>",
		"distinct": "<max_rows_in_distinct>1</max_rows_in_distinct>" +
			"<distinct_overflow_mode>break</distinct_overflow_mode>",
		"join": "<max_rows_in_join>1</max_rows_in_join><join_overflow_mode>break</join_overflow_mode>",
		// None of these makes the server return an error.
		"extremes": "<extremes>1</extremes>",
		"others": "<limit>1</limit><offset>1</offset><use_query_cache>1</use_query_cache>" +
			"<query_cache_nondeterministic_function_handling>ignore</query_cache_nondeterministic_function_handling>" +
			"<additional_result_filter>0</additional_result_filter>" +
			"<additional_table_filters>{'millrace.audit_log': '0'}</additional_table_filters>" +
			"<prefer_column_name_to_alias>1</prefer_column_name_to_alias>" +
			"<aggregate_functions_null_for_empty>1</aggregate_functions_null_for_empty>",
	}
}

// limitErrors returns the codes of the errors of a query over a limit.
func limitErrors() []int32 {
	return []int32{int32(proto.ErrTooManyRows), int32(proto.ErrTimeoutExceeded), int32(proto.ErrSetSizeLimitExceeded),
		int32(proto.ErrTooManyRowsOrBytes)}
}

// A user with such a profile gets complete results or errors.
func TestPartialResultsProfile(t *testing.T) {
	t.Parallel()
	need.Full(t)
	var profiles, users strings.Builder
	for name, settings := range partialProfiles() {
		fmt.Fprintf(&profiles, "<%s>%s</%[1]s>", name, settings)
		fmt.Fprintf(&users, "<%s><password></password><networks><ip>127.0.0.1</ip></networks><profile>%[1]s</profile>"+
			"<quota>default</quota></%[1]s>", name)
	}
	engine := clickhousetest.Start(t, embedded.Config{Users: "<clickhouse><profiles><default/>" +
		profiles.String() + "</profiles><quotas><default/></quotas><users>" +
		"<default><password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile>" +
		"<quota>default</quota></default>" + users.String() + "</users></clickhouse>"})
	plain := clickhousetest.Connect(t, clickhouse.Config{Addresses: []string{engine.Addr()}})
	if _, err := migrate.Run(t.Context(), plain, false); err != nil {
		t.Fatal(err)
	}
	ask := func(name, want, profile string, db *clickhouse.DB) {
		answer, err := readModel()[name](t.Context(), db)
		var said *ch.Exception
		switch {
		case err == nil && asText(t, answer) != want:
			t.Errorf("with profile %s, %s is %.200s, want %.200s or an error", profile, name, asText(t, answer), want)
		case err != nil && (profile == "others" || profile == "extremes"):
			t.Errorf("with profile %s, %s is the error %v, want %.200s", profile, name, err, want)
		case err != nil && (!errors.As(err, &said) || !slices.Contains(limitErrors(), said.Code)):
			t.Errorf("with profile %s, %s is the error %v, want one of a limit", profile, name, err)
		}
	}
	dbs := map[string]*clickhouse.DB{}
	for profile := range partialProfiles() {
		dbs[profile] = clickhousetest.Connect(t, clickhouse.Config{Addresses: []string{engine.Addr()}, User: profile})
	}
	dbs["reader"] = clickhousetest.Connect(t,
		clickhouse.Config{Addresses: []string{engine.Addr()}, Reader: clickhouse.Login{User: "set"}})
	all := histories()
	store(t, plain, all[:3])
	for name := range readModel() {
		ask(name, answerTo(t, plain, name), "others", dbs["others"])
	}
	store(t, plain, all[3:9])
	must(t, clickhouse.NewSink(plain).Mark(t.Context(), committedOf(1)[schemas.RoleSink]))
	for name := range readModel() {
		want := answerTo(t, plain, name)
		for profile, db := range dbs {
			ask(name, want, profile, db)
		}
	}
}
