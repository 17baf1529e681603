
 5d3ac10e2f0e1c6a8d1bb0b6c2f7e915-2records-behind8B÷ö‡œ¿¡¿J÷ö‡œ¿¡¿êö*
÷ö‡œ¿¡¿opened*changes/3: 17 of 20™
copy_state