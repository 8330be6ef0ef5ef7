"""Pure decisions of the controller: values in, values out."""
