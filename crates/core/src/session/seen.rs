//! Characters in names that people could not see, or that would move others about on a terminal.

/// Whether a character is a control character, a separator of lines or paragraphs, or of Unicode's category Cf
/// (format). That category has soft hyphens, zero width spaces and joiners, marks and overrides of direction, and tags.
/// Names that people read have none of these.
///
/// The ranges of Cf are from Unicode 16. All machines use the same ranges, so a name that one process accepts is
/// accepted by all.
pub fn is_unseen(character: char) -> bool {
    character.is_control()
        || matches!(
            u32::from(character),
            0xad | 0x600..=0x605
                | 0x61c
                | 0x6dd
                | 0x70f
                | 0x890..=0x891
                | 0x8e2
                | 0x180e
                | 0x200b..=0x200f
                | 0x2028..=0x202e
                | 0x2060..=0x206f
                | 0xfeff
                | 0xfff9..=0xfffb
                | 0x110bd
                | 0x110cd
                | 0x13430..=0x1343f
                | 0x1bca0..=0x1bca3
                | 0x1d173..=0x1d17a
                | 0xe0000..=0xe007f
        )
}
