"""Parts of netbuilder-prove, which shows that training does not depend on the number of devices."""
