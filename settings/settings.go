// Package settings reads a daemon's settings from its environment.
package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"time"

	"github.com/caarlos0/env/v11"

	"github.com/berth-cloud/berth/timescale"
)

// Read reads a struct whose fields are tagged with the names of their variables.
// Errors name the variable, not the field, and what it has to be.
func Read[T any]() (T, error) {
	config, err := env.ParseAs[T]()
	var wrong env.ParseError
	if errors.As(err, &wrong) {
		if field, ok := reflect.TypeFor[T]().FieldByName(wrong.Name); ok {
			name := field.Tag.Get("env")
			err = fmt.Errorf("%s is %q, want %s", name, os.Getenv(name), wanted(field.Type))
		}
	}
	if err == nil {
		err = timescale.Check()
	}
	if err != nil {
		return config, fmt.Errorf("read settings from the environment: %w", err)
	}
	return config, nil
}

// wanted says what can be read into a field.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Slice:
		return wanted(t.Elem()) + ", or several, separated by commas"
	case reflect.Bool:
		return "true or false"
	}
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "a time with its unit, such as 30s, 5m or 24h"
	case reflect.TypeFor[slog.Level]():
		return "debug, info, warn or error"
	}
	return "a whole number"
}
