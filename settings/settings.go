// Package settings reads a daemon's settings from its environment.
package settings

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/caarlos0/env/v11"

	"github.com/berth-cloud/berth/timescale"
)

// Read reads a struct whose fields are tagged with the names of their variables.
// Errors name the variable, not the field.
func Read[T any]() (T, error) {
	config, err := env.ParseAs[T]()
	var wrong env.ParseError
	if errors.As(err, &wrong) {
		if field, ok := reflect.TypeFor[T]().FieldByName(wrong.Name); ok {
			err = fmt.Errorf("%s: %w", field.Tag.Get("env"), wrong.Err)
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
